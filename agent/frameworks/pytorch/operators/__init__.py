"""Single operators in PyTorch, as ``agent.operators`` has them."""
