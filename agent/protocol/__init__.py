"""The parts that both ends of a connection share: tensors, messages, spans and status codes."""
