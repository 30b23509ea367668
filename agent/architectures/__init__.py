"""Models that are built in code rather than loaded from a graph file."""
