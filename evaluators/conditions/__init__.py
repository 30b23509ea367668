"""The conditions of a measurement: disturbances, the stability of its times, and the verdict."""
