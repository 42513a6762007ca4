"""The installed third-party kernels: their checks, and one scoreboard."""
