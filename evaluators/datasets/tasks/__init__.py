"""Datasets of other tasks than the classification of images."""
