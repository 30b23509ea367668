"""Tasks of an agent: the meaning of a model's outputs, and the predictions made from them."""
