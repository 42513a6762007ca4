"""The processes that run kernels, and generators run side by side in forks."""
