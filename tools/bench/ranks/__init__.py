"""`packproof bench ranks`: context parallelism on several GPUs, judged and timed."""
