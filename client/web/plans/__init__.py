"""Plans in the page."""
