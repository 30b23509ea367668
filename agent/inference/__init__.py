"""Inference in this process: sessions, the pipeline, the interface of predictors, and results."""
