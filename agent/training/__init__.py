"""Training in this process: the trainers' interface, their options, and what a step returns."""
