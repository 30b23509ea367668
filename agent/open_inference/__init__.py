"""The code that servers and clients of the V2 (Open Inference) protocol share."""
