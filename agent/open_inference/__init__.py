"""The V2 (Open Inference) protocol: what its servers and its clients share."""
