"""The old path of commands of `packproof.proof`."""
