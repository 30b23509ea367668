"""Single operators: what they compute, the values of their inputs, and how a framework runs them."""
