"""Adapters of third-party kernels, a module for each package; `packproof.adapters.registry` lists them."""
