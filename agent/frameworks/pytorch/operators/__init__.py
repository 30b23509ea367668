"""Single operators in PyTorch, as defined in ``agent.operators``."""
