"""Rogues whose answer is not made by their own kernels. Each is judged by a contract that forbids all other kernels."""
