"""Architectures written with PyTorch, one class in one file each."""
