"""The gRPC server: thin servicers that convert, call the session and convert back."""
