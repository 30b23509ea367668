"""``agent bench``: turns DLBS's options into requests, and prints results in DLBS's format."""
