"""Adapters to kernels of others, a module for each package; `packproof.adapters.registry` lists them."""
