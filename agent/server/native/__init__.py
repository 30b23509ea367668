"""The services of the agent's own protocol, ``inferometer.v1``."""
