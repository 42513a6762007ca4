"""Rogues of kernels that cut packs over ranks: one rank acts on another past their group. Each is a convolution."""
