"""Single operators in ONNX Runtime, as defined in ``agent.operators``."""
