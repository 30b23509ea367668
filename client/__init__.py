"""The ``agent`` command line, its configuration and the remote agent's client: the parts put together."""
