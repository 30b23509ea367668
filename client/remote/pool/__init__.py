"""Several agents that share one evaluation."""
