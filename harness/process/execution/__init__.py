"""One call of a kernel in this process: placement, differentiation, calling modes, and how its exceptions are
classified. Also the primitive by which all rooms fork this process.
"""
