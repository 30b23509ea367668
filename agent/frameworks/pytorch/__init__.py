"""The predictor, trainer, profilers and operators for PyTorch; no module outside this package imports it."""
