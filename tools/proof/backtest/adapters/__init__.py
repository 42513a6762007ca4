"""Calls of kernels as they were at a commit, where the adapters of today's releases do not fit."""
