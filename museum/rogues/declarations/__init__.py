"""Rogues of a declaration: it leaves out, or allows, a mistake of the kernel. Each is a convolution."""
