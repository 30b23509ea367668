"""The commands of plans of experiments."""
