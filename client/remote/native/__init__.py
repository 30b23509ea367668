"""The client of the agent's own protocol, ``inferometer.v1``."""
