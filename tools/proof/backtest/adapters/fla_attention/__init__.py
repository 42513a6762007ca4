"""flash-linear-attention's attention over pairs of tokens, as it was at a commit."""
