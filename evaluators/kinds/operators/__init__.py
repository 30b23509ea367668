"""The measurement of single operators in the frameworks."""
