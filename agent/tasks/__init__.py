"""Tasks as an agent knows them: what a model's outputs mean, and the predictions made of them."""
