"""How far a value may lie from the reference: the error budget, and the bounds it follows from."""
