"""Assembles the ``agent`` command line, its configuration and the client of remote agents."""
