"""The Open Inference Protocol, version 2, for the models that the agent serves."""
