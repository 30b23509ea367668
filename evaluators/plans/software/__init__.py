"""What runs a cell: an interpreter or a container, and how a cell chooses it."""
