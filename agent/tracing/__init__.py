"""Tracing: spans that show where the time goes; nothing here imports a framework."""
