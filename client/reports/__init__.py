"""What is read back: ``info evaluation`` and what belongs to it."""
