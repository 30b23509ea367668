"""The parts of MXNet's trainer: the networks in its two APIs, and the optimizers."""
