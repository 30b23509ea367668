"""Measurement of a model under load: queries are sent as they would arrive in production."""
