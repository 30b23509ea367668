"""The conditions of a measurement: what disturbed it, whether its times hold still, and the verdict."""
