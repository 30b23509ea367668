"""One package per framework; no module outside a package imports its framework."""
