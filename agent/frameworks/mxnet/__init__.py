"""MXNet: its predictor, trainer, profilers and operators; no other module imports it."""
