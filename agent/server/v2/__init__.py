"""The Open Inference Protocol, version 2, over the models that the agent serves."""
