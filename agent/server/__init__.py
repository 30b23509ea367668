"""The gRPC server of an agent, and the conversion between its messages and the program's own types."""
