"""References of rows in groups, as experts compute them: products, permutations, and numbers with block scales."""
