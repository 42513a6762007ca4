"""Rogues of a declaration: it leaves out, or allows, what the kernel computes incorrectly. Each is a convolution."""
