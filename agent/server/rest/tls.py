"""TLS of the HTTP server, with the same files and certificate renewal as the gRPC port."""

from __future__ import annotations

import logging
import ssl

from inferometer.agent.protocol.pem_files import read_authorities, read_identity
from inferometer.agent.server.security.credentials import ServerTls
from inferometer.manifests.errors import ConfigurationError

_log = logging.getLogger(__name__)


def tls_context(tls: ServerTls) -> ssl.SSLContext:
    """Returns the server's TLS context, which renews the certificate when a file changes.

    New connections get the new certificate. Raises ConfigurationError as ``ServerTls.credentials`` does.
    """
    context, version = _context(tls), tls.version()
    latest = context

    def renew(secured: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        """Renews the certificate if its files have changed; called when a client connects."""
        nonlocal latest, version
        found = tls.version()
        if found is not None and found != version:
            try:
                latest, version = _context(tls), found
            except ConfigurationError as error:  # key and certificate are two files
                _log.warning("the certificate was not renewed for HTTP, the old one stays: %s", error)
        if latest is not context:
            secured.context = latest

    context.sni_callback = renew
    return context


def _context(tls: ServerTls) -> ssl.SSLContext:
    read_identity(tls.certificate, tls.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except OSError as error:  # the files have changed since they were read
        raise ConfigurationError(f"tls_cert {tls.certificate}: changed while it was read") from error
    if tls.clients_ca is not None:
        context.load_verify_locations(cadata=read_authorities(tls.clients_ca).decode("ascii", "replace"))
        context.verify_mode = ssl.CERT_REQUIRED
    return context
