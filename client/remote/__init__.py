"""The client of a remote agent: a system under test behind a socket."""
