"""The results of runs, one file each, and the journal of a plan, which is append-only."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from inferometer.manifests.errors import OutputError

IN_WORK, WAITING = "in work", "waiting"
"""The states of runs without a result: with a job, and without."""
_FILE = "journal.jsonl"
_TAIL = 64


class Ended(str, Enum):
    """The ways in which a run ends."""

    COMPLETE = "complete"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out of memory"
    INTERRUPTED = "interrupted"
    LEFT_OUT = "left out"
    """It did not run: a smaller batch ran out of memory."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run.

    Attributes:
        key: The run; see ``Run.key``.
        ended: How the run ended.
        reason: Why it is not complete, in one line; empty if it is.
        exit_code: The exit code of the command; None if it has none.
        host: The machine.
        start_ns: When the command began, as Unix time in nanoseconds.
        end_ns: When the command had ended, as Unix time in nanoseconds.
        evaluations: The ids of the evaluations that it published, in order.
        monitor: The summary of the monitor; None without one.
    """

    key: str
    ended: Ended
    reason: str = ""
    exit_code: int | None = None
    host: str = ""
    start_ns: int = 0
    end_ns: int = 0
    evaluations: tuple[str, ...] = ()
    monitor: Mapping[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """Returns the result as a JSON document."""
        return {**asdict(self), "ended": self.ended.value, "evaluations": list(self.evaluations)}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Result:
        """Returns the result that a document describes; fields that later versions add are ignored.

        Raises:
            ValueError: The document is not that of a result; also ``KeyError`` and ``TypeError``.
        """
        known = {each.name for each in fields(cls)}
        given = {name: value for name, value in document.items() if name in known}
        evaluations = tuple(given.pop("evaluations", ()))
        texts = (given["key"], given.get("reason", ""), given.get("host", ""), *evaluations)
        times = (given.get("start_ns", 0), given.get("end_ns", 0))
        if not (all(isinstance(t, str) for t in texts) and all(isinstance(t, int) for t in times)):
            raise TypeError("a value is of another type")
        return cls(**{**given, "ended": Ended(given["ended"]), "evaluations": evaluations})


def write_result(path: Path, result: Result) -> None:
    """Writes a result atomically, and flushes it to the disk.

    Raises:
        OutputError: It cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            json.dump(result.document(), file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_result(path: Path) -> Result | None:
    """Returns the result of a run; None if there is none, or it is not complete."""
    try:
        return Result.of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


class Event(str, Enum):
    """The kinds of journal entries."""

    SUBMITTED = "submitted"
    """A run was given to the place where it runs, with the job's id."""
    LOST = "lost"
    """A job ended without a result, with the reason."""
    RESTARTED = "restarted"
    """The place started a job again by itself, with the reason."""
    ENDED = "ended"
    """A run has its result."""


@dataclass(slots=True)
class RunHistory:
    """The journal entries of one run, summarized.

    Attributes:
        job: The id of its job that has not ended; empty for none.
        last_job: The id of its last job, whether or not it has ended; empty for none.
        losses: The reasons of jobs that ended without a result, or were restarted, in order.
        lost: How many jobs ended without a result since the last one, for a reason that may be the run's.
        restarts: How often the place has restarted its job.
        result: Its last result; None if it has none.
    """

    job: str = ""
    losses: list[str] = field(default_factory=list)
    lost: int = 0
    restarts: int = 0
    result: Result | None = None
    last_job: str = ""

    @property
    def state(self) -> str:
        """The state: ``in work``, ``waiting``, or how the run ended."""
        if self.job:
            return IN_WORK
        return WAITING if self.result is None else self.result.ended.value


class Journal:
    """The journal in the folder of a plan. Only one process at a time may write it.

    Args:
        folder: The folder of the plan.

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = journal_file(folder)
        self.runs: dict[str, RunHistory] = read_history(folder)
        try:
            _mend(self._path)
        except OSError as error:
            raise self._failure(error) from error

    def submitted(self, key: str, job: str) -> None:
        """Records the job of a run; an earlier result of the run no longer counts."""
        self._add(key, Event.SUBMITTED, {"job": job})

    def lost(self, key: str, reason: str, *, counts: bool) -> None:
        """Records that the job of a run ended without a result, and whether that counts in ``lost``."""
        self._add(key, Event.LOST, {"reason": reason, "counts": counts})

    def restarted(self, key: str, reason: str) -> None:
        """Records that the place has restarted the job of a run."""
        self._add(key, Event.RESTARTED, {"reason": reason})

    def ended(self, result: Result) -> None:
        """Records the result of a run."""
        self._add(result.key, Event.ENDED, {"result": result.document()})

    def _add(self, key: str, event: Event, content: Mapping[str, Any]) -> None:
        line = {"at_ns": time.time_ns(), "run": key, "event": event.value, **content}
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write((json.dumps(line) + "\n").encode())
                os.fsync(file.fileno())
        except OSError as error:
            raise self._failure(error) from error
        _apply(self.runs, line)

    def _failure(self, error: OSError) -> OutputError:
        return OutputError(f"{self._path}: the journal cannot be written: {error.strerror or error}")


def journal_file(folder: Path) -> Path:
    """Returns the file of the journal in the folder of a plan."""
    return folder / _FILE


class JournalFollower:
    """Reads a journal that another process writes, each time only the lines that were added.

    Args:
        folder: The folder of the plan.

    Attributes:
        changed_ns: When the journal last changed, as Unix time in nanoseconds; 0 if there is none.
        runs: The history of each run; damaged lines are ignored.
    """

    def __init__(self, folder: Path) -> None:
        self._path = journal_file(folder)
        self.changed_ns = 0
        self.runs: dict[str, RunHistory] = {}
        self._read, self._tail, self._size = 0, b"", -1

    def look(self) -> bool:
        """Reads the lines that were added; returns whether the journal has changed."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if (status.st_mtime_ns, status.st_size) == (self.changed_ns, self._size):
                    return False
                self.changed_ns, self._size = status.st_mtime_ns, status.st_size
                file.seek(self._read - len(self._tail))
                if file.read(len(self._tail)) != self._tail:  # another file is in its place
                    file.seek(0)
                    self._read, self._tail, self.runs = 0, b"", {}
                self._take(file.read())
        except OSError:
            changed = self._size >= 0
            self.changed_ns, self.runs = 0, {}
            self._read, self._tail, self._size = 0, b"", -1
            return changed
        return True

    def _take(self, added: bytes) -> None:
        begin = self._read
        for line in added.splitlines(keepends=True):
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                if not line.endswith(b"\n"):
                    break  # it is being written
            else:
                with suppress(LookupError, TypeError, ValueError):
                    _apply(self.runs, content)
            self._read += len(line)
        self._tail = (self._tail + added[: self._read - begin])[-_TAIL:]


def read_history(folder: Path) -> dict[str, RunHistory]:
    """Returns the history of each run in the journal of a folder; damaged lines are ignored."""
    journal = JournalFollower(folder)
    journal.look()
    return journal.runs


def _apply(runs: dict[str, RunHistory], line: Mapping[str, Any]) -> None:
    history = runs.setdefault(line["run"], RunHistory())
    match Event(line["event"]):
        case Event.SUBMITTED:
            history.job, history.result, history.restarts = str(line["job"]), None, 0
            history.last_job = history.job
        case Event.LOST:
            history.job = ""
            history.lost += line["counts"]
            history.losses.append(str(line["reason"]))
        case Event.RESTARTED:
            history.restarts += 1
            history.losses.append(str(line["reason"]))
        case Event.ENDED:
            history.job, history.lost, history.result = "", 0, Result.of(line["result"])


def _mend(path: Path) -> None:
    """Ends a line that was cut off, so that the next entry starts on its own line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
