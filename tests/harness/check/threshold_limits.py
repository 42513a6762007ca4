"""A constant of another module, for `threshold_kernels`."""

SEQUENCES = 300
