"""The protocol of an inferometer agent."""
