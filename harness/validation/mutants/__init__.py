"""Mutation testing: edits of a kernel's source, and which check detects each."""
