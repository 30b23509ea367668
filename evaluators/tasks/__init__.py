"""The tasks of models as an evaluation knows them: predictions against a dataset's truth, and the scores."""
