"""Kernels by name: how a function is located and imported, and packproof's own kernels as targets."""
