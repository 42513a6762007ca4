"""One call of a kernel in this process: placement, differentiation, calling modes, and how its exceptions are
classified.
"""
