"""The Open Inference Protocol, which KServe, Triton and others speak."""
