"""Forwards the commands that were here; they are in `packproof.proof`."""
