"""Certificates for tests, from an authority that the test trusts and from others."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class CertificateFiles:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Vouches for certificates, which it writes into a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._ca = trustme.CA()
        self._folder = folder
        self._name = name
        self.ca = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.ca))

    def issue(self, *names: str, file: str = "server", days_left: float = 30) -> CertificateFiles:
        """A certificate for hosts, addresses or mail addresses, written over one of the same ``file``."""
        now = datetime.datetime.now(datetime.timezone.utc)
        issued = self._ca.issue_cert(
            *names,
            not_before=now - datetime.timedelta(days=60),
            not_after=now + datetime.timedelta(days=days_left),
        )
        files = CertificateFiles(
            self._folder / f"{self._name}-{file}.pem", self._folder / f"{self._name}-{file}.key"
        )
        files.cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(files.key))
        return files
