"""The old path of the plugin in `packproof.harness.pytest`."""
