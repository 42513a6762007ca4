"""Third-party kernels that are installed here: their checks, and one scoreboard."""
