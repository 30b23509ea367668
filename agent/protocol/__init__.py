"""The parts shared by both ends of a connection: tensors, messages, spans and status codes."""
