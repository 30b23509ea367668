"""The Open Inference Protocol over HTTP: JSON and binary tensors to the messages of the service, and back."""
