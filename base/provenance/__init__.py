"""Who computed a call, and what the host did beside, as data."""
