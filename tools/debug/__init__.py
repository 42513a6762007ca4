"""Debugging tools that run a kernel in this process: diff and gradcheck."""
