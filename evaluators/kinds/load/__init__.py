"""A model under load: queries as they arrive."""
