"""Unpacking an archive that nobody has checked: all of it lands in one folder, within bounds, or none."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from agent.addresses import shown
from manifests.errors import ArtifactError

_CHUNK_BYTES = 1024 * 1024
_MOST_HEADER_BYTES = 4 * 1024 * 1024
_ENCRYPTED = 0x1
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
    """How much an archive may hold.

    Attributes:
        max_files: The most files and folders.
        max_bytes: The most bytes, all files together.
    """

    max_files: int = 10_000
    max_bytes: int = 32 * 1024**3


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of an archive: a folder where there is no content."""

    name: str
    content: _Readable | None


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def unpack(archive: Path, folder: Path, limits: UnpackLimits = UnpackLimits()) -> dict[str, str]:
    """Unpacks a zip or a tar, also one compressed by gzip, bzip2 or xz, which its first bytes tell.

    Files are written as plain files without their times, owners and rights. An archive that holds anything
    but files and folders, or a name that leads out of it, is refused as a whole.

    Args:
        archive: The archive.
        folder: An empty folder; after an error it may hold a part of the files.
        limits: How much it may hold.

    Returns:
        The SHA-256 of each file, in hexadecimal, by its path in the archive.

    Raises:
        ArtifactError: It is no archive, is damaged, or is refused; or it cannot be written.
    """
    sums: dict[str, str] = {}
    names: set[str] = set()
    left_bytes = limits.max_bytes
    try:
        for entry in _entries(archive):
            name = _checked_name(archive, entry.name)
            names.add(name)
            if len(names) > limits.max_files:
                raise ArtifactError(f"{archive}: holds more than {limits.max_files} files and folders")
            target = folder / name
            if entry.content is None:
                target.mkdir(parents=True, exist_ok=True)
                continue
            if name in sums:
                raise ArtifactError(f"{archive}: holds {shown(name)} twice")
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                size, sums[name] = _copy(entry.content, file, left_bytes)
            left_bytes -= size
            if left_bytes < 0:
                raise ArtifactError(f"{archive}: holds more than {limits.max_bytes} bytes when unpacked")
    except _DAMAGED as error:
        raise ArtifactError(f"{archive}: is damaged: {_one_line(error)}") from error
    except OSError as error:
        if error.errno is None:  # what gzip and bz2 say of their content
            raise ArtifactError(f"{archive}: is damaged: {_one_line(error)}") from error
        raise ArtifactError(f"{archive}: cannot be unpacked into {folder}: {_one_line(error)}") from error
    return sums


def _copy(content: _Readable, file: BinaryIO, most_bytes: int) -> tuple[int, str]:
    """Copies at most one byte more than allowed; returns how many, and their SHA-256."""
    state, size = hashlib.sha256(), 0
    while size <= most_bytes and (chunk := content.read(min(_CHUNK_BYTES, most_bytes + 1 - size))):
        file.write(chunk)
        state.update(chunk)
        size += len(chunk)
    return size, state.hexdigest()


def _checked_name(archive: Path, name: str) -> str:
    """Returns the path of an entry below the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ArtifactError(
            f"{archive}: holds {shown(name)}, which leads out of the archive; nothing was taken"
        )
    return str(path)


def _entries(archive: Path) -> Iterator[_Entry]:
    """The entries of an archive, one after another; the content of each is read before the next."""
    with archive.open("rb") as file:
        magic = file.read(6)
    if magic.startswith(b"PK"):
        yield from _of_zip(archive)
    else:
        yield from _of_tar(archive, magic)


def _of_zip(archive: Path) -> Iterator[_Entry]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where it was not made on a Unix
            if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
                raise _refused(archive, info.filename)
            if info.flag_bits & _ENCRYPTED:
                raise ArtifactError(f"{archive}: {shown(info.filename)} is encrypted")
            if info.is_dir():
                yield _Entry(info.filename, None)
            else:
                with opened.open(info) as content:
                    yield _Entry(info.filename, content)


def _of_tar(archive: Path, magic: bytes) -> Iterator[_Entry]:
    with ExitStack() as resources:
        stream = _decompressed(archive, magic)
        resources.callback(stream.close)
        metered = _Metered(archive, stream)
        try:
            opened = resources.enter_context(tarfile.open(fileobj=metered, mode="r|"))  # type: ignore[call-overload] # it only reads
        except tarfile.ReadError as error:
            raise ArtifactError(f"{archive}: is no zip and no tar") from error
        while (member := opened.next()) is not None:
            if member.isdir():
                yield _Entry(member.name, None)
            elif member.isreg() and (content := opened.extractfile(member)):
                metered.left_bytes = None
                yield _Entry(member.name, content)
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
    """A stream of which a tar's headers may take only so much: they are read into memory as a whole.

    Attributes:
        left_bytes: How much may still be read; None while a file's content is.
    """

    def __init__(self, archive: Path, stream: _Readable) -> None:
        self._archive = archive
        self._stream = stream
        self.left_bytes: int | None = _MOST_HEADER_BYTES

    def read(self, size: int) -> bytes:
        """Reads on."""
        if self.left_bytes is not None:
            self.left_bytes -= size
            if self.left_bytes < 0:
                raise ArtifactError(f"{self._archive}: a header is larger than {_MOST_HEADER_BYTES} bytes")
        return self._stream.read(size)


def _refused(archive: Path, name: str) -> ArtifactError:
    return ArtifactError(
        f"{archive}: {shown(name)} is a link or a device; accepted in an archive: files and folders"
    )


def _one_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.split())
