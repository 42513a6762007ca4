"""Packed problems to train and to compare on: contracts made from a table, each with solutions of the museum."""
