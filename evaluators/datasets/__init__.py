"""Labelled datasets: a folder of class folders, a zip of the same, or an ``.npz``."""
