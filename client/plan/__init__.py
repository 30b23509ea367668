"""``agent plan``: the commands for plans of experiments."""
