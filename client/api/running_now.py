"""Shares the progress of running jobs with other processes: one small file per job in the data directory.

The measuring process holds a lock on its file. The operating system releases the lock however the process
ends, so a file without a lock is stale and is ignored. The process writes only when it reports progress, at
most once a second.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferometer.client.api.progress import line_of
from inferometer.evaluators.kinds.batches.run import Progress
from inferometer.evaluators.load.issuer import IssuerProgress
from inferometer.evaluators.running.resources import JobStart

FOLDER = "running"
"""The folder in the data directory."""
_EVERY_S = 1.0
_MOST_BYTES = 16_384
_ENDING = ".json"


class RunningFile:
    """Publishes the progress of a job to other processes. Does nothing if the file cannot be written.

    Args:
        data_directory: The data directory; None disables publishing.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, data_directory: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = None if data_directory is None else data_directory / FOLDER
        self._clock = clock
        self._descriptor: int | None = None
        self._path: Path | None = None
        self._content: dict[str, Any] = {}
        self._next_s = 0.0
        self._length = self._runs = 0
        self._elapsed_s = 0.0

    def begin(self, what: JobStart) -> None:
        """Begins another evaluation of the job."""
        system = what.system
        framework = f"{system.manifest.framework.name} {system.framework_version}".rstrip()
        self._content = {
            "title": f"{system.manifest.name} {system.manifest.version}",
            "detail": f"{framework} · {system.device} · {what.inputs}, {what.input_count} inputs",
            "work": what.work,
            "began_unix_s": time.time(),
            "done": 0,
            "total": 0,
            "text": "warming up" if what.work else "starting",
        }
        self._runs, self._elapsed_s = 1, 0.0
        if self._folder is None:
            return
        with suppress(OSError):
            if self._descriptor is None:
                self._create(self._folder)
            self._write()

    def __call__(self, progress: Progress | IssuerProgress) -> None:
        """Receives progress, and writes it if a second has passed since the last write."""
        if self._descriptor is None or self._clock() < self._next_s:
            return
        if isinstance(progress, Progress):
            text = f"{progress.done:,} of {progress.total:,} {progress.counted}"
            text += f", {progress.now}" if progress.now else ""
            self._content |= {"done": progress.done, "total": progress.total, "text": text}
        else:
            self._runs += progress.elapsed_s < self._elapsed_s
            self._elapsed_s = progress.elapsed_s
            text = line_of(progress, self._runs if self._runs > 1 else 0).strip()
            self._content |= {"done": progress.sent, "total": progress.total or 0, "text": text}
        with suppress(OSError):
            self._write()

    def close(self) -> None:
        """Removes the file, and the folder if it is then empty."""
        if self._descriptor is not None and self._path is not None:
            with suppress(OSError):
                self._path.unlink()
            with suppress(OSError):
                os.close(self._descriptor)
            with suppress(OSError):
                self._path.parent.rmdir()
        self._descriptor = None

    def _create(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for _ in _read(folder, remove=True):
            pass
        name = uuid.uuid4().hex
        partial, self._path = folder / f".{name}", folder / f"{name}{_ENDING}"
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
        try:
            descriptor = os.open(partial, flags, 0o600)
        except FileNotFoundError:  # another process has removed the empty folder
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(partial, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            partial.rename(self._path)
        except BaseException:
            os.close(descriptor)
            partial.unlink(missing_ok=True)
            raise
        self._descriptor, self._length = descriptor, 0

    def _write(self) -> None:
        """Overwrites the content with one system call, which wakes no other process."""
        self._next_s = self._clock() + _EVERY_S
        text = json.dumps(self._content).encode("ascii")[:_MOST_BYTES]
        if self._descriptor is not None:
            os.pwrite(self._descriptor, text.ljust(self._length), 0)
        self._length = max(self._length, len(text))


@dataclass(frozen=True, slots=True)
class Running:
    """A running job.

    Attributes:
        title: The model.
        detail: The framework, device and inputs.
        work: The load; empty for batches.
        began_unix_s: When the job began, in seconds since 1970.
        done: The number of inputs or queries so far.
        total: The total number; 0 if unknown.
        text: The progress as readable text.
    """

    title: str
    detail: str
    work: str
    began_unix_s: float
    done: int
    total: int
    text: str


def running_now(data_directory: Path) -> list[Running]:
    """Returns the jobs running on this machine with this data directory, ordered by start time."""
    found = []
    for content in _read(data_directory / FOLDER, remove=False):
        # a file that is read during a write is complete at the next reading
        with suppress(ValueError, TypeError, RecursionError):
            known = json.loads(content)
            found.append(Running(**{name: known[name] for name in Running.__slots__ if name in known}))
    return sorted(found, key=lambda each: each.began_unix_s)


def _read(folder: Path, *, remove: bool) -> Iterator[bytes]:
    """Yields the content of each locked file; with ``remove``, deletes the unlocked ones."""
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if path.suffix != _ENDING:
                continue
            with suppress(OSError), path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield file.read(_MOST_BYTES)
                else:
                    if remove:
                        path.unlink()
