"""Inputs and their preprocessing: decoding, resizing, cropping and normalization into tensors."""
