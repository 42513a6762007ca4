"""Collators, packers and losses of frameworks for training, as they were at a commit."""
