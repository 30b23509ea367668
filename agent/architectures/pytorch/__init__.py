"""Architectures written with PyTorch."""
