"""Who computes a call, seen from inside the process that runs it."""
