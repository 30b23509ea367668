"""Version 1 of the protocol; its stubs are generated."""
