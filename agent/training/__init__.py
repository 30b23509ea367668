"""Training in this process: the interface of trainers, their options, and the result of a step."""
