"""Who computed a call, as data."""
