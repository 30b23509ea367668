"""The models that an agent has loaded for all its clients, each with a queue of its own."""
