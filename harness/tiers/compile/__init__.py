"""The compile tier: every variant of a kernel, compiled ahead of time for real targets, without a GPU."""
