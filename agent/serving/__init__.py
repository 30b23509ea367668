"""Loaded models that clients share: queues, dynamic batching, and statistics; independent of gRPC."""
