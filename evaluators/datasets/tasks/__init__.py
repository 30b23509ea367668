"""Datasets of tasks beyond classification, whose samples have a truth instead of a class."""
