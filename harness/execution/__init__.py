"""One call of a kernel in this process: placement, differentiation, calling modes, and what its exceptions mean."""
