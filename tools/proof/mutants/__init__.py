"""Mutation testing: edits of a kernel's source, and the check that detects each."""
