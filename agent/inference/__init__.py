"""Inference in this process: sessions, the pipeline, the predictors' interface, and results."""
