"""The cache of downloads: each file is fetched once and verified whenever it is used."""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from inferometer.agent.artifacts.archives import UnpackedArchive, UnpackLimits, unpack, write_record
from inferometer.agent.artifacts.checksums import SHA256, CheckedFile, check_file, digests, mismatch
from inferometer.agent.artifacts.downloads import Downloader, PartialFile
from inferometer.agent.artifacts.locations import cached_path, is_file, plain_name
from inferometer.agent.artifacts.urls import shown
from inferometer.manifests.errors import ArtifactError, ArtifactUnavailableError

_KEY_DIGITS = 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class ArtifactCache:
    """A directory of downloaded files. Safe for any number of processes and threads.

    A file is at ``downloads/<host>/<hash of the URL>/<file name>``, and the SHA-256 of a download
    is in ``<file name>.json`` beside it. A file that a user puts there by hand is used as well. Archives are
    unpacked into ``unpacked/<file name>-<hash of the content>/``.
    The directory is created with the first file.
    """

    directory: Path
    downloader: Downloader
    unpack_limits: UnpackLimits = UnpackLimits()  # noqa: RUF009 - frozen

    def fetch(self, url: str, checksum: str, source: object) -> CheckedFile:
        """Returns the file at an http or https URL that ends with a file's name; a missing one is downloaded.

        Without a checksum, the file must be the one that was downloaded. The error names ``source``, the
        manifest.

        Raises:
            ArtifactUnavailableError: The download fails. The message names the path for a copy by hand.
            ArtifactError: The file has another checksum, or the cache cannot be written.
        """
        place = cached_path(self.directory, url)
        if not is_file(place):
            with self._locked(place):
                if not is_file(place):  # otherwise another process was faster
                    return self._download(url, place, checksum, source)
        return _checked(place, checksum, source)

    def unpack(self, archive: CheckedFile) -> UnpackedArchive:
        """Returns the unpacked content of an archive.

        Raises:
            ArtifactError: The file is not an archive, is damaged or is rejected, or the cache cannot be
                written.
        """
        name = f"{plain_name(archive.path.name)}-{archive.sha256[:_KEY_DIGITS]}"
        folder = self.directory / "unpacked" / name
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
            write_record(record, archive, unpack(archive, content, self.unpack_limits))
            content.rename(folder)

    def _download(self, url: str, place: Path, checksum: str, source: object) -> CheckedFile:
        partial = PartialFile(place)
        with _writing(place.parent):
            try:
                while True:
                    resumed = self.downloader.download(url, partial)
                    found = digests(partial.path, checksum)
                    difference = mismatch(found, checksum, source)
                    if difference is None:
                        break
                    partial.discard()
                    if not resumed:  # otherwise the part from before may be the wrong one
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
        """Creates the folder of a path and keeps other processes and threads from writing to the path."""
        with _writing(place.parent):
            place.parent.mkdir(parents=True, exist_ok=True)
            # one per use, because threads that share a FileLock share its lock
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
    """Returns a file of the cache if its checksum, or the one recorded at its download, matches."""
    record = place.with_name(f"{place.name}.json")
    try:
        if checksum or not is_file(record):  # without either, a user put it there
            return check_file(place, checksum, source)
        return check_file(place, f"{SHA256}:{_recorded(record)}", f"{record}, from when it was downloaded,")
    except ArtifactError as error:
        raise ArtifactError(f"{error}; remove it and {record.name}, and it is downloaded again") from error


def _recorded(record: Path) -> str:
    """Returns the SHA-256 that was recorded when a file was downloaded."""
    try:
        found = json.loads(record.read_text(encoding="utf-8"))[SHA256]
        if re.fullmatch("[0-9a-f]{64}", found):
            return str(found)
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise ArtifactError(f"{record}: is damaged: {type(error).__name__}") from error
    raise ArtifactError(f"{record}: is damaged: its {SHA256} is none")


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turns disk errors into an error that names a remedy."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"the cache {folder} cannot be written: {error.strerror or error}; AGENT_CACHE_DIR can name "
            "another directory"
        ) from error
