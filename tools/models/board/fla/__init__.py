"""Small models of flash-linear-attention, and whether they isolate packed documents and their labels."""
