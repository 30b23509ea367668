"""Charts: what they show, and how Matplotlib paints them."""
