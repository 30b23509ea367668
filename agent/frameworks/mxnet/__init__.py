"""The predictor, trainer, profilers and operators for MXNet; no module outside this package imports it."""
