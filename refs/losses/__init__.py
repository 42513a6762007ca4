"""References of losses: over the vocabulary, of policies, of routers."""
