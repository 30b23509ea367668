"""Single operators: their definitions, and the interface of a framework that runs them."""
