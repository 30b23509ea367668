"""Single operators in MXNet, as ``agent.operators`` has them."""
