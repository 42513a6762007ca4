"""Rogues without an answer of their own kernels. Their contract forbids all other kernels."""
