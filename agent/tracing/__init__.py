"""Tracing: where the time goes, as spans; nothing here imports a framework."""
