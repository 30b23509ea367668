"""Formats of files that datasets are in: their framing and their fields, without labels or order."""
