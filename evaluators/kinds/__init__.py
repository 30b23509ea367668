"""The kinds of measurement, a room each: its job, its measurement, its documents, reports and pictures."""
