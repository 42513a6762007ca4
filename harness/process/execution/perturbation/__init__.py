"""A call made many times while its warps, blocks and launches are delayed: a race between them shows in other bits."""
