"""Architectures written in MXNet; only ``agent.frameworks.mxnet`` loads them, after it has prepared NumPy."""
