"""Unpacks untrusted archives: either all files go into one folder and stay within limits, or none does."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from inferometer.agent.artifacts.downloads import SHA256, CheckedFile, digests, mismatch
from inferometer.agent.artifacts.locations import is_file, shown
from inferometer.manifests.errors import ArtifactError, one_line, suggestion

_CHUNK_BYTES = 1024 * 1024
_MOST_HEADER_BYTES = 4 * 1024 * 1024
_ENCRYPTED = 0x1
_BOUNDED_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""The accepted compression methods. With others, Python inflates a whole chunk at once: 1 MiB to 20 GB."""
_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    ValueError,
    NotImplementedError,  # a compression that Python does not have
)


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """The maximum number of files and folders in an archive, and of bytes in all of its files."""

    max_files: int = 10_000
    max_bytes: int = 32 * 1024**3


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def unpack(archive: Path, folder: Path, limits: UnpackLimits = UnpackLimits()) -> dict[str, str]:
    """Unpacks a zip or a tar (plain, gzip, bzip2 or xz), which its first bytes identify.

    Files are written without their times, owners and permissions. An archive that holds anything but files
    and folders, or a name that leads out of the folder, is rejected as a whole. The folder must be empty;
    after an error it may contain some of the files.

    Returns:
        The SHA-256 of each file, in hexadecimal, by its path in the archive.

    Raises:
        ArtifactError: The file is not an archive, is damaged or is rejected, or the folder cannot be written.
    """
    sums: dict[str, str] = {}
    names: set[str] = set()
    left_bytes = limits.max_bytes
    try:
        for entry, content in _entries(archive):
            path = PurePosixPath(entry)
            if path.is_absolute() or ".." in path.parts or "\0" in entry:
                raise ArtifactError(
                    f"{archive}: holds {shown(entry)}, which leads out of the archive; nothing was unpacked"
                )
            name = str(path)
            names.add(name)
            if len(names) > limits.max_files:
                raise ArtifactError(f"{archive}: holds more than {limits.max_files} files and folders")
            target = folder / name
            if content is None:
                target.mkdir(parents=True, exist_ok=True)
                continue
            if name in sums:
                raise ArtifactError(f"{archive}: holds {shown(name)} twice")
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                size, sums[name] = _copy(content, file, left_bytes)
            left_bytes -= size
            if left_bytes < 0:
                raise ArtifactError(f"{archive}: holds more than {limits.max_bytes} bytes when unpacked")
    except (*_DAMAGED, OSError) as error:
        reason = one_line(getattr(error, "strerror", None) or error)
        # an OSError without a number is what gzip and bz2 say of their content
        if isinstance(error, OSError) and error.errno is not None:
            raise ArtifactError(f"{archive}: cannot be unpacked into {folder}: {reason}") from error
        raise ArtifactError(f"{archive}: is damaged: {reason}") from error
    return sums


def _copy(content: _Readable, file: BinaryIO, most_bytes: int) -> tuple[int, str]:
    """Copies at most one byte more than allowed; returns the number of bytes and their SHA-256 digest."""
    state, size = hashlib.sha256(), 0
    while size <= most_bytes and (chunk := content.read(min(_CHUNK_BYTES, most_bytes + 1 - size))):
        file.write(chunk)
        state.update(chunk)
        size += len(chunk)
    return size, state.hexdigest()


def _entries(archive: Path) -> Iterator[tuple[str, _Readable | None]]:
    """Yields the name and content of each entry; the content must be read before the next entry.

    An entry whose content is None is a folder.
    """
    with archive.open("rb") as file:
        magic = file.read(6)
    if magic.startswith(b"PK"):
        yield from _of_zip(archive)
    else:
        yield from _of_tar(archive, magic)


def _of_zip(archive: Path) -> Iterator[tuple[str, _Readable | None]]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where it was not made on a Unix
            if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
                raise _refused(archive, info.filename)
            if info.flag_bits & _ENCRYPTED:
                raise ArtifactError(f"{archive}: {shown(info.filename)} is encrypted")
            if info.compress_type not in _BOUNDED_METHODS:
                raise ArtifactError(
                    f"{archive}: {shown(info.filename)} is compressed by method {info.compress_type}; "
                    "accepted in a zip: stored or deflated"
                )
            if not info.filename:  # which zipfile cannot tell from a folder
                raise ArtifactError(f"{archive}: is damaged: an entry has no name")
            if info.is_dir():
                yield info.filename, None
            else:
                with opened.open(info) as content:
                    yield info.filename, content


def _of_tar(archive: Path, magic: bytes) -> Iterator[tuple[str, _Readable | None]]:
    with ExitStack() as resources:
        stream = _decompressed(archive, magic)
        resources.callback(stream.close)
        metered = _Metered(archive, stream)
        try:
            opened = resources.enter_context(tarfile.open(fileobj=metered, mode="r|"))  # type: ignore[call-overload] # it only reads
        except tarfile.ReadError as error:
            raise ArtifactError(f"{archive}: is neither a zip nor a tar") from error
        while (member := opened.next()) is not None:
            if member.isdir():
                yield member.name, None
            elif member.isreg() and (content := opened.extractfile(member)):
                metered.left_bytes = None
                yield member.name, content
            else:
                raise _refused(archive, member.name)
            metered.left_bytes = _MOST_HEADER_BYTES
        while metered.read(_CHUNK_BYTES):  # to the end, where the compression has its checksum
            pass


def _decompressed(archive: Path, magic: bytes) -> gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile | BinaryIO:
    if magic.startswith(b"\x1f\x8b"):
        return gzip.open(archive)
    if magic.startswith(b"BZh"):
        return bz2.open(archive)
    if magic.startswith(b"\xfd7zXZ\0"):
        return lzma.open(archive)
    return archive.open("rb")


class _Metered:
    """A stream with a limit on the size of a tar's headers, each of which is read into memory whole."""

    def __init__(self, archive: Path, stream: _Readable) -> None:
        self._archive = archive
        self._stream = stream
        self.left_bytes: int | None = _MOST_HEADER_BYTES  # None while the content of a file is read

    def read(self, size: int) -> bytes:
        """Reads bytes, within the limit."""
        if self.left_bytes is not None:
            self.left_bytes -= size
            if self.left_bytes < 0:
                raise ArtifactError(f"{self._archive}: a header is larger than {_MOST_HEADER_BYTES} bytes")
        return self._stream.read(size)


def _refused(archive: Path, name: str) -> ArtifactError:
    return ArtifactError(
        f"{archive}: {shown(name)} is a link or a device; accepted in an archive: files and folders"
    )


def write_record(record: Path, archive: Path, sums: Mapping[str, str]) -> None:
    """Records the SHA-256 of each unpacked file by its path in the archive; raises OSError."""
    record.write_text(json.dumps({"archive": str(archive), "files": dict(sums)}), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class UnpackedArchive:
    """The content of an unpacked archive: the SHA-256 of each file when it was unpacked, by path."""

    archive: Path
    folder: Path
    sums: Mapping[str, str]

    @classmethod
    def read(cls, archive: Path, folder: Path, record: Path) -> UnpackedArchive:
        """Reads the checksums that ``write_record`` recorded; raises ArtifactError."""
        try:
            sums = json.loads(record.read_text(encoding="utf-8"))["files"]
            if not isinstance(sums, dict):
                raise TypeError(f"files is {type(sums).__name__}")
        except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
            raise ArtifactError(
                f"{record}: has changed or is missing; remove it and {folder} to unpack {archive} again"
            ) from error
        return cls(archive, folder, sums)

    def file(self, path: str, checksum: str, source: object) -> CheckedFile:
        """Returns the file at a path in the archive that the manifest ``source`` requires.

        Raises:
            ArtifactError: The file is missing, has changed since it was unpacked, or has another checksum.
        """
        name = str(PurePosixPath(path))
        if name not in self.sums:
            raise ArtifactError(f'{self.archive}: holds no "{shown(path)}"; {suggestion(name, self.sums)}')
        unpacked = self.folder / name
        if not is_file(unpacked):
            raise ArtifactError(
                f"{unpacked}: is missing; remove {self.folder} to unpack {self.archive} again"
            )
        found = digests(unpacked, checksum)
        if found[SHA256] != self.sums[name]:
            raise ArtifactError(
                f"{unpacked}: has been changed or truncated since it was unpacked; remove {self.folder} "
                f"to unpack {self.archive} again"
            )
        if difference := mismatch(found, checksum, source):
            raise ArtifactError(
                f'{self.archive}: its "{shown(path)}" is not the file that is meant: {difference}'
            )
        return CheckedFile(unpacked, found[SHA256])
