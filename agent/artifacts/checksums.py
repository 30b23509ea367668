"""Checksums of files: SHA-256, SHA-1 and MD5, in the notations of manifests and of published weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inferometer.manifests.errors import ArtifactError

_CHUNK_BYTES = 1024 * 1024
SHA256 = "sha256"


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A verified file on this machine, the SHA-256 of its content, and whether this call downloaded it."""

    path: Path
    sha256: str
    downloaded: bool = False

    @property
    def checksum(self) -> str:
        """The SHA-256 as manifests write it."""
        return f"{SHA256}:{self.sha256}"


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file's content in hexadecimal; raises ArtifactError as ``digests`` does."""
    return digests(path)[SHA256]


def digests(path: Path, checksum: str = "") -> dict[str, str]:
    """Returns digests of a file's content in hexadecimal, by algorithm: SHA-256, and that of a checksum.

    The file is read once; raises ArtifactError if it cannot be.
    """
    states = {name: hashlib.new(name, usedforsecurity=False) for name in {SHA256, _algorithm(checksum)}}
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                for state in states.values():
                    state.update(chunk)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from error
    return {name: state.hexdigest() for name, state in states.items()}


def check_file(path: Path, checksum: str, source: object) -> CheckedFile:
    """Returns the file if its content has the ``checksum``.

    See ``manifests.fields.Checksum``; an empty one is not checked. The error names ``source``, the manifest.

    Raises:
        ArtifactError: The file cannot be read, or has another checksum.
    """
    found = digests(path, checksum)
    if difference := mismatch(found, checksum, source):
        raise ArtifactError(f"{path}: is changed or truncated: {difference}")
    return CheckedFile(path, found[SHA256])


def mismatch(found: Mapping[str, str], checksum: str, source: object) -> str | None:
    """Describes how the digests of a file differ from a checksum; None where they match."""
    algorithm, expected = _algorithm(checksum), checksum.rpartition(":")[2].casefold()
    actual = found[algorithm]
    if actual.startswith(expected):  # a whole checksum, the first digits of one, or none
        return None
    begins = "begins with " if len(expected) < len(actual) else ""
    return f"its {algorithm} is {actual}, {source} says {begins}{expected}"


def _algorithm(checksum: str) -> str:
    """Returns the name of the algorithm; MD5 has none in a checksum, as in MLModelScope's manifests."""
    return checksum.rpartition(":")[0].casefold() or ("md5" if checksum else SHA256)
