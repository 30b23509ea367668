"""Single operators: their definitions, the values of their inputs, and how a framework runs them."""
