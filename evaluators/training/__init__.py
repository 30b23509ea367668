"""Training runs: the loop over batches, its ranks, and what they measured."""
