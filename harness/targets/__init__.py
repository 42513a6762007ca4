"""Kernels by name: where a function is found, and packproof's own kernels as targets."""
