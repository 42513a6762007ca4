"""The causal language models of transformers, made small: which of them isolate packed documents, and how."""
