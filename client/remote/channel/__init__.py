"""gRPC channels of either protocol: addresses, TLS, timeouts, retries and failures."""
