"""Single operators in MXNet, as defined in ``agent.operators``."""
