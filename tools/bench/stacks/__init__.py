"""Training steps of whole stacks of blocks: one document at a time, padded, packed, and packed in mamba-ssm's block."""
