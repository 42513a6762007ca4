"""Kernels that packproof is tested on: correct ones in several summation orders, and the same with one bug planted."""
