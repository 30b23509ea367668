"""Inputs and their preprocessing into tensors: decoding, resizing, cropping and normalization."""
