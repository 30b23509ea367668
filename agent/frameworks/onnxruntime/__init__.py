"""The predictor, profiler and operators for ONNX Runtime; no module outside this package imports it."""
