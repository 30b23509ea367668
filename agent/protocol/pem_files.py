"""Reads and verifies certificates and keys in PEM files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from inferometer.manifests.errors import ConfigurationError, explained

CERTIFICATE_OPTION = "tls_cert"
KEY_OPTION = "tls_key"
AUTHORITIES_OPTION = "tls_ca"
_MAX_BYTES = 1024 * 1024
_OTHER_KEY = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"})
_NO_PEM = frozenset({"NO_START_LINE", "BAD_BASE64_DECODE", "BAD_END_LINE", "SHORT_HEADER"})


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate chain in PEM, its own certificate first, and its private key, which ``repr`` hides."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"Identity({len(self.chain)} bytes of certificates)"


def read_identity(certificate: Path, key: Path) -> Identity:
    """Reads a certificate and the key that belongs to it.

    Raises ConfigurationError if a file cannot be read or is not PEM, or the key is encrypted or belongs to
    another certificate.
    """
    chain = _read(CERTIFICATE_OPTION, certificate)
    _load_authorities(CERTIFICATE_OPTION, certificate, chain)
    content = _read(KEY_OPTION, key)
    _check_key(certificate, key)
    if (chain, content) != (_read(CERTIFICATE_OPTION, certificate), _read(KEY_OPTION, key)):
        raise ConfigurationError(f"{CERTIFICATE_OPTION} {certificate}: changed while it was read; try again")
    return Identity(chain, content)


def read_authorities(path: Path) -> bytes:
    """Reads the trusted certificates.

    Raises ConfigurationError if the file cannot be read, or contains no certificate in PEM.
    """
    content = _read(AUTHORITIES_OPTION, path)
    _load_authorities(AUTHORITIES_OPTION, path, content)
    return content


def _read(option: str, path: Path) -> bytes:
    with explained(ConfigurationError, f"{option} {path}"), path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ConfigurationError(f"{option} {path}: is larger than {_MAX_BYTES} bytes, so not a PEM file")
    return content


def _load_authorities(option: str, path: Path, content: bytes) -> None:
    """Raises ConfigurationError unless the file contains certificates, all of which can be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    text = content.decode("ascii", errors="replace").replace("\ufffd", "?")  # comments may not be ASCII
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(f"{option} {path}: holds no certificate in PEM") from error
    if not context.cert_store_stats()["x509"]:
        raise ConfigurationError(f"{option} {path}: holds no certificate in PEM")


def _check_key(certificate: Path, key: Path) -> None:
    """Raises ConfigurationError unless the key is valid and belongs to the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    asked = False

    def password() -> str:  # without it OpenSSL prompts at the terminal
        nonlocal asked
        asked = True
        return ""

    try:
        context.load_cert_chain(certificate, key, password=password)
    except ssl.SSLError as error:
        if asked:
            reason = "is encrypted; give a key without a passphrase"
        elif error.reason in _OTHER_KEY:
            reason = f"is not the key of {CERTIFICATE_OPTION} {certificate}"
        elif error.reason in _NO_PEM or "PEM" in str(error):
            reason = "holds no private key in PEM"
        else:
            reason = f"cannot be used with {CERTIFICATE_OPTION} {certificate}: {error.reason}"
        raise ConfigurationError(f"{KEY_OPTION} {key}: {reason}") from error
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{KEY_OPTION} {key}: {error}") from error
