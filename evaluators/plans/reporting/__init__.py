"""Tables and charts of the measurements of a plan's cells."""
