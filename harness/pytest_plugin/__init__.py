"""Forwards the path that the plugin had; it is in `packproof.harness.pytest`."""
