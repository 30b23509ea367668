"""What stands around a served agent."""
