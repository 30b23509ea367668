"""The search for the best serving configuration of a model."""
