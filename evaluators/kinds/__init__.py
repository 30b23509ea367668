"""The kinds of measurement, a subpackage each: its job, measurement, documents, reports and plots."""
