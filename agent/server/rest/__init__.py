"""The Open Inference Protocol over HTTP: JSON and binary tensors to service messages and back."""
