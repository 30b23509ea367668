"""The tasks of models in an evaluation: predictions compared with a dataset's truth, and the scores."""
