"""Tables and pictures of what the cells of a plan measured."""
