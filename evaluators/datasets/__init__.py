"""Labelled datasets: their interface, a module for each family of formats, and the detection of formats."""
