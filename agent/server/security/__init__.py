"""Access to a served agent: TLS, the shared secret, and limits per client."""
