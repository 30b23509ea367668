"""The protocol of an inferscope agent."""
