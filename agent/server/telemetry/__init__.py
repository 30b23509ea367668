"""Telemetry of a running agent: metrics, log lines and its status."""
