"""Processes: workers that run kernels, the process that forks them, and generators run side by side."""
