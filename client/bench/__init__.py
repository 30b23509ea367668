"""``agent bench``: from DLBS's options to requests, and the runs of training and of loading."""
