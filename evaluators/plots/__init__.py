"""Pictures of reports: drawings made from rows, and the one writer that makes SVG, PNG and HTML of them."""
