"""The library: opens systems, runs jobs, and stores and publishes their measurements."""
