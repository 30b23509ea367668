"""The client of a remote agent, as a system under test."""
