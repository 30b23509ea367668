"""This machine: its devices, and the hardware and software that an evaluation records."""
