"""Charts: their content, and how Matplotlib draws them."""
