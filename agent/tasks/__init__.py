"""Tasks of an agent: what a model's outputs mean, and the predictions that are made from them."""
