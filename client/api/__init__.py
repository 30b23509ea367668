"""The library: opens systems, runs jobs, and keeps and publishes what they measure."""
