"""This machine: devices, and the hardware and software that an evaluation records."""
