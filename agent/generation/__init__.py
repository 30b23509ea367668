"""Language models that generate text: the engine that batches their requests, tokenizers, and opening."""
