"""Rogues that are whole models, for `packproof model`. Each lets a document see the one before it, and hides that."""
