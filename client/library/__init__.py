"""The Python library: what ``import inferometer`` evaluates and finds, by the jobs of the command line."""
