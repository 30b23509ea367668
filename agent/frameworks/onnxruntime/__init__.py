"""ONNX Runtime: its predictor and its profiler; nothing else imports it."""
