"""One module per framework; each alone imports its framework."""
