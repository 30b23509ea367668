"""The Python library behind ``import inferometer``; it runs the same jobs as the command line."""
