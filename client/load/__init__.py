"""Models under load: ``predict workload`` and ``predict max-qps``."""
