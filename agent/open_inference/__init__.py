"""Code shared by servers and clients of the V2 (Open Inference) protocol."""
