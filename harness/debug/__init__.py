"""Debugging tools that run a kernel on the user's own tensors: diff and gradcheck."""
