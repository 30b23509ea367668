"""Single operators of the frameworks."""
