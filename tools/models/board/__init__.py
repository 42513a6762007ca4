"""Small versions of the causal language models of transformers, and whether they isolate packed documents."""
