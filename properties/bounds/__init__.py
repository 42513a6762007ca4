"""How far from the reference a value may lie: the error budget, and the bounds that it follows from."""
