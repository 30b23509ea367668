"""Measurement of a loader alone: batches are read and preprocessed, and no model runs."""
