"""Whether a certificate may be used now, by its dates."""

from __future__ import annotations

import ssl
from pathlib import Path

_FAULTS = {9: "is not valid yet", 10: "has expired"}
"""What OpenSSL's ``X509_V_ERR_`` numbers mean that are about the dates."""


def date_fault(certificate: Path, key: Path) -> str | None:
    """Returns what is wrong with the dates of a certificate; None where nothing is, or it cannot be told.

    Python tells the dates of no certificate but one that it has accepted. So a server that shows this one is
    spoken to in memory, by a client that trusts nothing else.

    Args:
        certificate: It and the chain above it, in PEM.
        key: Its key.
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
    sides = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
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
