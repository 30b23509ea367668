"""Training in this process: the trainers' interface, their options, and the result of a step."""
