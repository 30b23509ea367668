"""Making a dataset in one format from one in another, checking datasets, and what can be downloaded."""
