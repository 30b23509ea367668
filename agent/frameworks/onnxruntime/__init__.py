"""ONNX Runtime: its predictor, profiler and operators; no other module imports it."""
