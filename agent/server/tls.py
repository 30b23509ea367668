"""TLS of a served agent: its certificate, the admitted clients, and renewal at runtime.

The HTTP server and the gRPC port use the same files and renewal.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, cast

import grpc

from inferometer.agent.protocol.pem_files import (
    AUTHORITIES_OPTION,
    CERTIFICATE_OPTION,
    KEY_OPTION,
    read_authorities,
    read_identity,
)
from inferometer.manifests.errors import ConfigurationError

_FAULTS = {9: "is not valid yet", 10: "has expired"}
"""The meanings of OpenSSL's ``X509_V_ERR_`` numbers that concern dates."""


def date_fault(certificate: Path, key: Path) -> str | None:
    """Returns what is wrong with the dates of a certificate; None if nothing is, or if this is unknown.

    Python reads the dates of accepted certificates only. Therefore, an in-memory client, which trusts nothing
    else, connects to a server with this certificate and its chain.
    """
    client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        server.load_cert_chain(certificate, key)
        client.load_verify_locations(certificate)
    except (OSError, ValueError):  # they have changed since they were checked
        return None
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True))
    for side in (*sides, *sides):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return _FAULTS.get(error.verify_code)
        except ssl.SSLError:
            return None
    return None


_log = logging.getLogger(__name__)
_Read = TypeVar("_Read")
_Version = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The TLS files: the agent's certificate with its chain, and its key.

    ``clients_ca`` names the authorities for clients' certificates; if set, every client must present one.
    """

    certificate: Path
    key: Path
    clients_ca: Path | None = None

    @classmethod
    def of(cls, certificate: Path | None, key: Path | None, clients_ca: Path | None) -> ServerTls | None:
        """Returns the files that the options name, if any; raises ConfigurationError if one is missing."""
        if certificate is None and key is None:
            if clients_ca is not None:
                raise ConfigurationError(
                    f"{AUTHORITIES_OPTION} makes clients show a certificate, which needs TLS: "
                    f"give {CERTIFICATE_OPTION} and {KEY_OPTION} too"
                )
            return None
        if certificate is None or key is None:
            given, missing = (
                (CERTIFICATE_OPTION, KEY_OPTION) if certificate else (KEY_OPTION, CERTIFICATE_OPTION)
            )
            raise ConfigurationError(f"{given} is given without {missing}; TLS needs both")
        return cls(certificate, key, clients_ca)

    def credentials(self) -> grpc.ServerCredentials:
        """Returns gRPC's credentials. After a file has changed, new connections use the new one.

        Raises ConfigurationError if a file is missing, unreadable or not PEM, or if the files do not match.
        """
        renewal = _Renewal(self, self.read)
        if fault := date_fault(self.certificate, self.key):
            _log.warning("%s %s %s; clients will not trust it", CERTIFICATE_OPTION, self.certificate, fault)
        # None for "as it was" is documented, and missing in the types
        changed = cast("Callable[[], grpc.ServerCertificateConfiguration]", renewal.changed)
        return grpc.dynamic_ssl_server_credentials(
            renewal.first, changed, require_client_authentication=self.clients_ca is not None
        )

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Reads and checks the files; raises ConfigurationError like ``credentials``."""
        identity = read_identity(self.certificate, self.key)
        roots = read_authorities(self.clients_ca) if self.clients_ca else None
        return grpc.ssl_server_certificate_configuration([(identity.key, identity.chain)], roots)

    def version(self) -> _Version | None:
        """Returns a value that changes with the files; None if one of them is currently missing."""
        try:
            found = [path.stat() for path in (self.certificate, self.key, self.clients_ca) if path]
        except OSError:
            return None
        return tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in found)


class _Renewal(Generic[_Read]):
    """Rereads the files when they have changed; called for each connection, by gRPC in its own threads.

    The certificate and the key are two files, which do not change at the same moment: files that do not match
    are ignored, and reread at the next connection. ``door`` is what they are for, in messages.
    """

    def __init__(self, tls: ServerTls, read: Callable[[], _Read], door: str = "") -> None:
        self._tls, self._read, self._door = tls, read, door
        self._lock = threading.Lock()
        self._version = tls.version()
        self._refused: str | None = None
        self.first = read()

    def changed(self) -> _Read | None:
        """Returns the new certificate; None if it is unchanged or cannot be used."""
        with self._lock:
            version = self._tls.version()
            if version == self._version:
                self._refused = None
                return None
            try:
                found = self._read()  # says which file it is, where one is not there
            except ConfigurationError as error:
                if str(error) != self._refused:
                    self._refused = str(error)
                    _log.warning(
                        "the certificate was not renewed%s, the old one stays: %s", self._door, error
                    )
                return None
            if version is None:  # it has come back just now
                return None
            self._version, self._refused = version, None
        _log.info("the certificate was renewed%s", self._door)
        return found


def tls_context(tls: ServerTls) -> ssl.SSLContext:
    """Returns the server's TLS context, which renews the certificate when a file changes.

    New connections get the new certificate. Raises ConfigurationError like ``ServerTls.credentials``.
    """
    renewal = _Renewal(tls, lambda: _context(tls), " for HTTP")
    context = latest = renewal.first

    def renew(secured: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        """Renews the certificate if its files have changed; called when a client connects."""
        nonlocal latest
        latest = renewal.changed() or latest
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
