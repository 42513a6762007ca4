"""Rogues that are whole models, for `packproof model`. A document sees the one before it."""
