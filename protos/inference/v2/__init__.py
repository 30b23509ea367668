"""Version 2 of the Open Inference Protocol, with extensions of Triton's; its stubs are generated."""
