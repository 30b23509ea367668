"""One package per framework; no other module imports the framework."""
