"""Single operators in ONNX Runtime, as ``agent.operators`` has them."""
