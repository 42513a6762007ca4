"""The proof of a module around its kernels: each document of a pack computes as if it were alone."""
