"""Loaded models that clients share: queues, dynamic batching, and statistics; knows nothing of gRPC."""
