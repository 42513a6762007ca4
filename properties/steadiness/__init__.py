"""Whether a kernel does the same work for every layout of a shape: no more compilations, tuning, reads or memory."""
