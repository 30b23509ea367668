"""Downloads with a size limit that are resumed and retried, the checksums of files, and archives.

A download is retried only if a retry can help. Checksums are SHA-256, SHA-1 or MD5, in the notations used by
manifests and by publishers of weights. Archives are not trusted: either all of their files are unpacked into
one folder and stay within limits, or none is.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import re
import shutil
import stat
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from inferometer.agent.artifacts.locations import is_file, shown
from inferometer.agent.artifacts.web import (
    PrivateAddressError,
    Reach,
    Response,
    Timeouts,
    TooLargeError,
    WebError,
    open_url,
)
from inferometer.agent.files import sync
from inferometer.manifests.errors import (
    ArtifactError,
    ArtifactUnavailableError,
    explained,
    one_line,
    suggestion,
)

_CHUNK_BYTES = 1024 * 1024
SHA256 = "sha256"


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A verified local file, the SHA-256 of its content, and whether this call downloaded it."""

    path: Path
    sha256: str
    downloaded: bool = False

    @property
    def checksum(self) -> str:
        """The SHA-256 as written in manifests."""
        return f"{SHA256}:{self.sha256}"


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file's content in hexadecimal; raises ArtifactError like ``digests``."""
    return digests(path)[SHA256]


def digests(path: Path, checksum: str = "") -> dict[str, str]:
    """Returns the hexadecimal digests of a file's content: SHA-256, and the checksum's algorithm.

    The file is read once; raises ArtifactError if it cannot be read. The keys are the algorithms.
    """
    states = {name: hashlib.new(name, usedforsecurity=False) for name in {SHA256, _algorithm(checksum)}}
    with explained(ArtifactError, f"{path}: cannot be read"), path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            for state in states.values():
                state.update(chunk)
    return {name: state.hexdigest() for name, state in states.items()}


def check_file(path: Path, checksum: str, source: object) -> CheckedFile:
    """Returns the file if its content matches the ``checksum``.

    See ``manifests.fields.Checksum``; an empty checksum is not checked. Errors name ``source``, the manifest.

    Raises:
        ArtifactError: The file cannot be read, or has another checksum.
    """
    found = digests(path, checksum)
    if difference := mismatch(found, checksum, source):
        raise ArtifactError(f"{path}: is changed or truncated: {difference}")
    return CheckedFile(path, found[SHA256])


def mismatch(found: Mapping[str, str], checksum: str, source: object) -> str | None:
    """Describes how the digests of a file differ from a checksum; None if they match."""
    algorithm, expected = _algorithm(checksum), checksum.rpartition(":")[2].casefold()
    actual = found[algorithm]
    if actual.startswith(expected):  # a whole checksum, the first digits of one, or none
        return None
    begins = "it begins with " if len(expected) < len(actual) else ""
    return f"its {algorithm} is {actual}, but {source} says {begins}{expected}"


def _algorithm(checksum: str) -> str:
    """Returns the checksum's algorithm: MD5 if it names none, as in MLModelScope's manifests."""
    return checksum.rpartition(":")[0].casefold() or ("md5" if checksum else SHA256)


@dataclass(frozen=True, slots=True)
class FileVersion:
    """The version of a file as described by a server, with its strong entity tag."""

    url: str
    etag: str = ""
    last_modified: str = ""
    total_bytes: int | None = None

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str], total_bytes: int | None) -> FileVersion:
        """Reads the version from the headers of a response."""
        etag = headers.get("ETag", "")
        if etag.startswith("W/"):  # a weak one does not promise the same bytes
            etag = ""
        return cls(url, etag, headers.get("Last-Modified", ""), total_bytes)

    @property
    def validator(self) -> str:
        """The value for the ``If-Range`` header; empty if a download cannot be resumed."""
        return self.etag or self.last_modified

    def may_be(self, other: FileVersion) -> bool:
        """Returns whether two versions agree in every field that both of them have."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return all(not mine or not its or mine == its for mine, its in pairs)


class PartialFile:
    """An unfinished download of ``target``: its content is in ``<name>.part``, its version in ``….json``."""

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self._version_path = target.with_name(f"{target.name}.part.json")

    @property
    def size(self) -> int:
        """The number of bytes downloaded so far."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def version(self, url: str) -> FileVersion | None:
        """Returns the version of the partial file if it belongs to this URL and can be resumed."""
        try:
            found = FileVersion(**json.loads(self._version_path.read_text(encoding="utf-8")))
            fits = found.url == url and bool(found.validator) and self.size > 0
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return None  # it is missing, or not written by this program
        return found if fits else None

    def start(self, version: FileVersion) -> None:
        """Starts over with a new version of the file; raises OSError if it cannot be written."""
        self.path.write_bytes(b"")
        self._version_path.write_text(json.dumps(asdict(version)), encoding="utf-8")

    def discard(self) -> None:
        """Removes the partial file."""
        for path in (self.path, self._version_path):
            with suppress(FileNotFoundError):
                path.unlink()

    def finish(self, target: Path) -> None:
        """Renames the completed file atomically; raises OSError if that fails."""
        sync(self.path)
        self.path.replace(target)
        self.discard()
        sync(target.parent)


_OK, _PARTIAL, _RANGE_NOT_SATISFIABLE = 200, 206, 416
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_PROGRESS_BYTES = 1024 * 1024
"""An attempt that downloads at least this many bytes resets the count of failed attempts."""


@dataclass(frozen=True, slots=True)
class DownloadLimits:
    """The limits of a download.

    At most ``tries`` attempts may fail without significant progress. The first wait takes ``backoff_s``, and
    each further wait is twice as long, up to ``max_backoff_s``, even if the server requests a longer one.
    """

    max_bytes: int = 32 * 1024**3
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    tries: int = 5
    backoff_s: float = 0.5
    max_backoff_s: float = 30.0


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """The progress of a download; ``ended`` marks the last report, even if the download failed."""

    url: str
    done_bytes: int
    total_bytes: int | None
    ended: bool = False


class Downloader:
    """Downloads files. Thread-safe, as long as no two threads use the same partial file.

    ``on_progress`` is called in the downloading thread.
    """

    def __init__(
        self,
        limits: DownloadLimits = DownloadLimits(),
        on_progress: Callable[[DownloadProgress], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limits = limits
        self._on_progress = on_progress
        self._sleep = sleep
        self._timeouts = Timeouts(limits.connect_timeout_s, limits.read_timeout_s)

    def download(self, url: str, partial: PartialFile) -> bool:
        """Completes a partial file, which is kept on disk if the download fails or is interrupted.

        The download resumes if the server's file has not changed. Returns whether it resumed.

        Raises:
            ArtifactUnavailableError: The download fails; the message is the reason, without the URL.
            OSError: The file cannot be written.
        """
        failures, most_bytes = 0, partial.size
        try:
            while True:
                try:
                    return self._try(url, partial)
                except WebError as error:
                    if not error.transient:
                        raise ArtifactUnavailableError(str(error)) from error
                    grown = partial.size - most_bytes
                    most_bytes = max(most_bytes, partial.size)
                    failures = 1 if grown >= _PROGRESS_BYTES else failures + 1
                    if failures >= self._limits.tries:
                        raise ArtifactUnavailableError(f"{error} (tried {failures} times)") from error
                    wait_s = max(error.retry_after_s, self._limits.backoff_s * 2 ** (failures - 1))
                self._sleep(min(wait_s, self._limits.max_backoff_s))
        finally:
            self._on_progress(DownloadProgress(url, partial.size, None, ended=True))

    def _try(self, url: str, partial: PartialFile) -> bool:
        """Makes one attempt; see ``download``. Raises WebError if it fails."""
        known = partial.version(url)
        if known and known.total_bytes == partial.size:
            return True  # the program was stopped between the last byte and the file's new name
        offset = partial.size if known else 0
        headers = {"Range": f"bytes={offset}-", "If-Range": known.validator} if known else {}
        try:
            with open_url(url, self._timeouts, Reach.ORIGIN, headers=headers) as response:
                return self._take(response, url, partial, known, offset)
        except PrivateAddressError as error:
            raise ArtifactUnavailableError(
                f"{error}; to allow it, name that address in the manifest"
            ) from error

    def _take(
        self, response: Response, url: str, partial: PartialFile, known: FileVersion | None, offset: int
    ) -> bool:
        """Writes the response's content; returns whether it continues the partial file."""
        if response.status not in {_OK, _PARTIAL} or (response.status == _PARTIAL and not known):
            if response.status == _RANGE_NOT_SATISFIABLE and known:
                partial.discard()
                raise WebError("the server has no more of the file", transient=True)
            raise response.refusal()
        if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
            raise WebError(f"the server uses the content encoding {shown(encoding)}, which was not requested")
        resumed = response.status == _PARTIAL
        start, total_bytes = _extent(response, offset if resumed else 0)
        version = FileVersion.of(url, response.headers, total_bytes)
        if resumed and known and not (start == offset and version.may_be(known)):
            partial.discard()
            raise WebError("the server sends a different part of the file than was requested", transient=True)
        self._check_size(partial, total_bytes, start)
        if not resumed:
            partial.start(version)
        self._copy(response, url, partial, start, total_bytes)
        return resumed

    def _check_size(self, partial: PartialFile, total_bytes: int | None, start: int) -> None:
        if total_bytes is None:
            return
        if total_bytes > self._limits.max_bytes:
            raise WebError(f"has {total_bytes} bytes; at most {self._limits.max_bytes}")
        free = shutil.disk_usage(partial.path.parent).free + (0 if start else partial.size)
        if total_bytes - start > free:
            raise WebError(
                f"needs {total_bytes - start} more bytes, but {partial.path.parent} has {free} free"
            )

    def _copy(
        self, response: Response, url: str, partial: PartialFile, done: int, total_bytes: int | None
    ) -> None:
        with partial.path.open("ab") as file:
            self._on_progress(DownloadProgress(url, done, total_bytes))
            try:
                for chunk in response.chunks(self._limits.max_bytes, done):
                    file.write(chunk)
                    done += len(chunk)
                    self._on_progress(DownloadProgress(url, done, total_bytes))
            except TooLargeError:
                file.close()
                partial.discard()
                raise
        if total_bytes is not None and done != total_bytes:
            raise WebError(f"ended after {done} of {total_bytes} bytes", transient=True)


def _extent(response: Response, offset: int) -> tuple[int, int | None]:
    """Returns where a response begins in the file, and the file's size if it is known."""
    if response.status == _PARTIAL:
        match = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
        if match is None:
            return -1, None
        return int(match[1]), None if match[2] == "*" else int(match[2])
    return offset, None if response.length is None else offset + response.length


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
        unpacked, again = self.folder / name, f"remove {self.folder} to unpack {self.archive} again"
        if not is_file(unpacked):
            raise ArtifactError(f"{unpacked}: is missing; {again}")
        found = digests(unpacked, checksum)
        if found[SHA256] != self.sums[name]:
            raise ArtifactError(f"{unpacked}: has been changed or truncated since it was unpacked; {again}")
        if difference := mismatch(found, checksum, source):
            raise ArtifactError(
                f'{self.archive}: its "{shown(path)}" is not the file that is meant: {difference}'
            )
        return CheckedFile(unpacked, found[SHA256])
