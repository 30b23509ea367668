"""The folder of a plan: its expanded cells, a folder for each run, the results of runs, and the journal.

The result of each run is a file, and the journal of a plan is append-only. The process of a run
records itself and its command in the folder of the run, each with its start time, so that a later process
with the same id is not mistaken for it. If the process is killed, its command continues and holds the lock
of its machine until ``end_orphan`` ends it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Strict, TypeAdapter, ValidationError

from inferometer.agent.files import LineJournal, is_locked, replacing
from inferometer.evaluators.plans.cells import Cell, Run
from inferometer.evaluators.plans.plan import Plan, first_error
from inferometer.manifests.errors import ConfigurationError, OutputError, explained, one_line

PLANS = "plans"
"""The folder of all plans in a data directory."""
AGENTS_PLACE, SLURM_PLACE = "agents", "slurm"
"""The names of two places, with which the ids of their jobs begin."""
IN_WORK, WAITING = "in work", "waiting"
"""The states of runs without a result: with a job, and without a job."""
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


STATES = (*(each.value for each in Ended), IN_WORK, WAITING)
"""All states of runs; the states of ended runs come first."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run.

    Attributes:
        key: The run; see ``Run.key``.
        ended: How the run ended.
        reason: Why it is not complete, in one line; empty if it is.
        exit_code: The exit code of the command; None if it has none.
        host: The name of the machine on which the run executed.
        start_ns: When the command began, as Unix time in nanoseconds.
        end_ns: When the command ended, as Unix time in nanoseconds.
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


_RESULT = TypeAdapter(Result)


def write_result(path: Path, result: Result) -> None:
    """Writes a result atomically, and flushes it to the disk; raises OutputError if it cannot be written."""
    with explained(OutputError, f"{path}: cannot be written"), replacing(path, synced=True) as file:
        file.write(json.dumps(asdict(result)).encode())


def read_result(path: Path) -> Result | None:
    """Returns the result of a run; None if there is none, or its file is damaged."""
    try:
        return _RESULT.validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return None


class Event(str, Enum):
    """The kinds of journal entries."""

    SUBMITTED = "submitted"
    """A run was given to the place where it runs; the entry has the job's id."""
    LOST = "lost"
    """A job ended without a result; the entry has the reason."""
    RESTARTED = "restarted"
    """The place itself started a job again; the entry has the reason."""
    ENDED = "ended"
    """A run has its result."""


@dataclass(slots=True)
class RunHistory:
    """The journal entries of one run, summarized.

    Attributes:
        job: The id of its job that has not ended; empty for none.
        last_job: The id of its last job, whether or not it has ended; empty for none.
        losses: Why jobs ended without a result, or were restarted, in order.
        lost: How many jobs have ended without a result since the last result, possibly because of the run.
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

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.runs: dict[str, RunHistory] = read_history(folder)
        self._lines = LineJournal(journal_file(folder), synced=True)

    def submitted(self, key: str, job: str) -> None:
        """Records the job of a run; an earlier result of the run is no longer valid."""
        self._add(key, Event.SUBMITTED, {"job": job})

    def lost(self, key: str, reason: str, *, counts: bool) -> None:
        """Records that the job of a run ended without a result, and whether that counts in ``lost``."""
        self._add(key, Event.LOST, {"reason": reason, "counts": counts})

    def restarted(self, key: str, reason: str) -> None:
        """Records that the place has restarted the job of a run."""
        self._add(key, Event.RESTARTED, {"reason": reason})

    def ended(self, result: Result) -> None:
        """Records the result of a run."""
        self._add(result.key, Event.ENDED, {"result": asdict(result)})

    def _add(self, key: str, event: Event, content: Mapping[str, Any]) -> None:
        line = {"at_ns": time.time_ns(), "run": key, "event": event.value, **content}
        self._lines.add(line)
        _apply(self.runs, line)


def journal_file(folder: Path) -> Path:
    """Returns the file of the journal in the folder of a plan."""
    return folder / "journal.jsonl"


class JournalFollower:
    """Reads a journal that another process writes; each call reads only the lines that were added.

    Attributes:
        changed_ns: When the journal last changed, as Unix time in nanoseconds; 0 if there is none.
        runs: The history of each run; damaged lines are ignored.
    """

    def __init__(self, folder: Path) -> None:
        self._path = journal_file(folder)
        self._forget()

    def _forget(self) -> None:
        self.changed_ns, self._size = 0, -1
        self.runs: dict[str, RunHistory] = {}
        self._read, self._tail = 0, b""

    def look(self) -> bool:
        """Reads the lines that were added; returns whether the journal has changed."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if (status.st_mtime_ns, status.st_size) == (self.changed_ns, self._size):
                    return False
                file.seek(self._read - len(self._tail))
                if file.read(len(self._tail)) != self._tail:  # another file is in its place
                    file.seek(0)
                    self._forget()
                self.changed_ns, self._size = status.st_mtime_ns, status.st_size
                self._take(file.read())
        except OSError:
            changed = self._size >= 0
            self._forget()
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
            history.job = history.last_job = str(line["job"])
            history.result, history.restarts = None, 0
        case Event.LOST:
            history.job = ""
            history.lost += line["counts"]
            history.losses.append(str(line["reason"]))
        case Event.RESTARTED:
            history.restarts += 1
            history.losses.append(str(line["reason"]))
        case Event.ENDED:
            history.job, history.lost, history.result = "", 0, _RESULT.validate_python(line["result"])


_SPEC, _PIDS = "run.json", "processes.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_START = 18
"""The index of the start time among the fields of /proc/PID/stat after the name and the state."""
_STOPPING_S = 60.0


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The specification of a run, which the process of the run reads.

    Attributes:
        key: The run; see ``Run.key``.
        argv: The whole command line.
        environment: Variables in addition to those of the process.
        timeout_s: The time limit in seconds.
        stop: The command that ends what survives the command of the run, such as a container; empty for none.
        monitor_s: The seconds between two samples of the monitor; 0 for none.
        locks: The folder of the lock files by which runs on one machine execute one after the other.
        machines: The names of the locks; empty for the machines that the process runs on.
        slurm: The sbatch options of its job in addition to those of the plan.
        container_pid: See ``CellCommand``.
    """

    key: str
    argv: tuple[str, ...]
    timeout_s: float
    locks: str
    environment: Mapping[str, str] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    monitor_s: float = 0.0
    machines: tuple[str, ...] = ()
    slurm: tuple[str, ...] = ()
    container_pid: tuple[str, ...] = ()


_SPEC_OF = TypeAdapter(RunSpec)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def result(self) -> Path:
        """The file of the run's result."""
        return self.path / "result.json"

    @property
    def log(self) -> Path:
        """The file with the output of the command."""
        return self.path / "log.txt"

    @property
    def data(self) -> Path:
        """The data directory of the command, with its own database."""
        return self.path / "data"

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables that make the command publish into the data directory of the run."""
        # an empty address is a file in that directory, whatever the configuration names
        return {"AGENT_DATA_DIR": str(self.data), "AGENT_DATABASE_ADDRESS": ""}

    def write(self, spec: RunSpec) -> None:
        """Writes the specification of the run, and removes an earlier result; raises OutputError."""
        with explained(OutputError, f"{self.path}: cannot be written"):
            self.data.mkdir(parents=True, exist_ok=True)
            self.result.unlink(missing_ok=True)
            (self.path / _SPEC).write_text(json.dumps(asdict(spec)), encoding="utf-8")

    def read(self) -> RunSpec:
        """Reads the specification of the run; raises ConfigurationError if it cannot be read."""
        try:
            return _SPEC_OF.validate_python(json.loads((self.path / _SPEC).read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            told = first_error(error, _SPEC) if isinstance(error, ValidationError) else one_line(error)
            raise ConfigurationError(f"{self.path}: is not the folder of a run: {told}") from error


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan as its folder stores it."""

    name: str
    description: str
    repeat: Annotated[int, Strict()]
    cells: tuple[Cell, ...]

    @property
    def runs(self) -> Iterator[Run]:
        """Its runs, by cell."""
        return (Run(cell, number) for cell in self.cells for number in range(1, self.repeat + 1))


_KEPT = TypeAdapter(KeptPlan)


@dataclass(frozen=True, slots=True)
class PlanFolder:
    """The folder of a plan."""

    path: Path

    @property
    def stop(self) -> Path:
        """The file whose presence asks the driver to stop after the current runs."""
        return self.path / "stop"

    @property
    def cells(self) -> Path:
        """The file that ``keep`` writes."""
        return self.path / "cells.json"

    @property
    def lock(self) -> Path:
        """The file that the driver locks."""
        return self.path / "driver.lock"

    @property
    def is_driven(self) -> bool:
        """Returns whether a driver has locked the folder."""
        try:
            with self.lock.open("rb") as file:
                return is_locked(file)
        except OSError:
            return False

    def keep(self, plan: Plan, cells: Iterable[Cell]) -> None:
        """Stores the cells of a plan for readers that lack the plan's file; raises OutputError."""
        content = plan.model_dump(include={"name", "description", "repeat"})
        content["cells"] = [asdict(each) for each in cells]
        with explained(OutputError, f"{self.path}: cannot be written"), replacing(self.cells) as file:
            file.write(json.dumps(content).encode())

    def kept(self) -> KeptPlan | None:
        """Returns the plan that ``keep`` last wrote; None if there is none that can be read."""
        try:
            return _KEPT.validate_python(json.loads(self.cells.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError):
            return None

    def run(self, run: Run) -> RunFolder:
        """Returns the folder of a run."""
        return RunFolder(self.path / "runs" / run.key)


def note_command(folder: RunFolder, command: int) -> None:
    """Records this process and the process of its command, which leads its own session."""
    processes = [[pid, _began(pid)] for pid in (os.getpid(), command)]
    with suppress(OSError):  # what is not noted goes on, and the next run waits for it
        (folder.path / _PIDS).write_text(json.dumps(processes), encoding="utf-8")


def end_orphan(folder: RunFolder) -> None:
    """Ends the command of a run whose process is dead, with its whole process group and its container."""
    # one of these where nothing is noted, or it has just ended
    with suppress(OSError, ValueError, TypeError, RecursionError, ConfigurationError):
        (owner, owner_began), (command, began) = json.loads((folder.path / _PIDS).read_text(encoding="utf-8"))
        is_dead = _began(owner, zombie=False) != owner_began
        if is_dead and began is not None and _began(command) == began and os.getsid(command) == command:
            os.killpg(command, signal.SIGKILL)
            stop_container(folder.read().stop)


def stop_container(words: Sequence[str]) -> None:
    """Ends a container, since ending the engine's client does not; does nothing without a command."""
    if words:
        subprocess.run(words, timeout=_STOPPING_S, check=False)  # noqa: S603 - what the plan says


def _began(pid: int, *, zombie: bool = True) -> str | None:
    """Returns when a process began, to tell it apart from others with the same id; None if it does not exist.

    With ``zombie``, an ended process exists until its parent has waited for it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = stat.rpartition(")")[2].split()
        began = f"{_BOOT.read_text(encoding='ascii').strip()} {fields[_START]}"
        return None if state == "Z" and not zombie else began
    except (OSError, IndexError, ValueError):
        return None
