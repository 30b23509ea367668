"""The `agent` command line, its configuration and the client of a remote agent: where the parts are put together."""
