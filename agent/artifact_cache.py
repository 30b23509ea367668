"""The cache of what was downloaded: each file is fetched once, and checked whenever it is used."""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from agent.addresses import shown
from agent.archives import UnpackLimits, unpack
from agent.checksums import SHA256, CheckedFile, check_file, digests, mismatch
from agent.downloading import Downloader
from agent.file_locations import cached_path, is_file, plain_name
from agent.partial_file import PartialFile
from agent.unpacked_archive import UnpackedArchive, write_record
from manifests.errors import ArtifactError, ArtifactUnavailableError

_KEY_DIGITS = 16
_log = logging.getLogger(__name__)


class ArtifactCache:
    """A directory with what was at URLs, for any number of processes and threads.

    A file is at ``downloads/<host>/<hash of the URL>/<file name>``, and what was downloaded has its SHA-256
    beside it, in ``<file name>.json``. One that a user puts there by hand is used as well. Archives are
    unpacked into ``unpacked/<file name>-<hash of the content>/``.

    Args:
        directory: The directory; it is made when something is put into it.
        downloader: Gets what is not there.
        unpack_limits: How much an archive may hold.
    """

    def __init__(
        self,
        directory: Path,
        downloader: Downloader,
        unpack_limits: UnpackLimits = UnpackLimits(),  # noqa: B008 - frozen
    ) -> None:
        self._directory = directory
        self._downloader = downloader
        self._unpack_limits = unpack_limits

    def fetch(self, url: str, checksum: str, source: object) -> CheckedFile:
        """Returns the file at a URL; it is downloaded if it is not there yet.

        Args:
            url: An http or https address that ends with a file's name.
            checksum: What the file must have; with none, it must be what was downloaded once.
            source: What names the URL, for the error.

        Raises:
            ArtifactUnavailableError: It cannot be downloaded. The message says where to put it by hand.
            ArtifactError: It is not the file that was meant, or the cache cannot be written.
        """
        place = cached_path(self._directory, url)
        if is_file(place):
            return _checked(place, checksum, source)
        with self._locked(place):
            if is_file(place):  # another process was faster
                return _checked(place, checksum, source)
            return self._download(url, place, checksum, source)

    def unpack(self, archive: CheckedFile) -> UnpackedArchive:
        """Returns what is in an archive, unpacked.

        Raises:
            ArtifactError: It is no archive, is damaged or is refused; or the cache cannot be written.
        """
        name = f"{plain_name(archive.path.name)}-{archive.sha256[:_KEY_DIGITS]}"
        folder = self._directory / "unpacked" / name
        record = folder.with_name(f"{name}.json")
        if not folder.is_dir():
            with self._locked(folder):
                if not folder.is_dir():
                    self._unpack(archive.path, folder, record)
        return UnpackedArchive.read(archive.path, folder, record)

    def _unpack(self, archive: Path, folder: Path, record: Path) -> None:
        with (
            _writing(folder.parent),
            tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking-") as temporary,
        ):
            content = Path(temporary) / "content"
            content.mkdir()
            write_record(record, archive, unpack(archive, content, self._unpack_limits))
            content.rename(folder)

    def _download(self, url: str, place: Path, checksum: str, source: object) -> CheckedFile:
        partial = PartialFile(place)
        with _writing(place.parent):
            try:
                while True:
                    resumed = self._downloader.download(url, partial)
                    found = digests(partial.path, checksum)
                    difference = mismatch(found, checksum, source)
                    if difference is None:
                        break
                    partial.discard()
                    if not resumed:  # else what was there before may have been the wrong part
                        raise ArtifactError(f"{shown(url)}: is not the file that is meant: {difference}")
            except ArtifactUnavailableError as error:
                raise ArtifactUnavailableError(
                    f"{shown(url)} cannot be downloaded: {error}; if you can get the file, put it at {place}"
                ) from error
            size = partial.size
            place.with_name(f"{place.name}.json").write_text(
                json.dumps({"url": url, SHA256: found[SHA256], "bytes": size}), encoding="utf-8"
            )
            partial.finish(place)
        _log.info("downloaded %s to %s (%d bytes)", shown(url), place, size)
        return CheckedFile(place, found[SHA256], downloaded=True)

    @contextmanager
    def _locked(self, place: Path) -> Iterator[None]:
        """Keeps other processes and threads from writing to a place; its folder is there then."""
        with _writing(place.parent):
            place.parent.mkdir(parents=True, exist_ok=True)
            # one per use, because threads that share a FileLock share what it locks
            lock = FileLock(place.with_name(f"{place.name}.lock"))
            try:
                lock.acquire(timeout=0)
            except Timeout:
                _log.warning("waiting for another process that is writing %s", place)
                lock.acquire()
        try:
            yield
        finally:
            lock.release()


def _checked(place: Path, checksum: str, source: object) -> CheckedFile:
    """Returns a file of the cache if it has its checksum or, without one, is what was downloaded."""
    record = place.with_name(f"{place.name}.json")
    try:
        if checksum or not is_file(record):  # without either, a user has put it there
            return check_file(place, checksum, source)
        return check_file(place, f"{SHA256}:{_recorded(record)}", f"{record}, from when it was downloaded,")
    except ArtifactError as error:
        raise ArtifactError(f"{error}; remove it and {record.name}, and it is downloaded again") from error


def _recorded(record: Path) -> str:
    """The SHA-256 that was written down when a file was downloaded."""
    try:
        found = json.loads(record.read_text(encoding="utf-8"))[SHA256]
        if re.fullmatch("[0-9a-f]{64}", found):
            return str(found)
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise ArtifactError(f"{record}: is damaged: {type(error).__name__}") from error
    raise ArtifactError(f"{record}: is damaged: its {SHA256} is none")


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turns what goes wrong with the disk into an error that says what can be done."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"the cache {folder} cannot be written: {error.strerror or error}; AGENT_CACHE_DIR can name "
            "another directory"
        ) from error
