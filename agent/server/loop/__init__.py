"""gRPC's event loop beneath the agent's methods, which know of none."""
