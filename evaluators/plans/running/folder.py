"""The folder of a plan: its expanded cells, and a folder for each run with its command and processes.

The process of a run records itself and its command in the folder of the run, each with its start time, so
that a later process with the same id is not mistaken for it. If the process is killed, its command continues
and holds the lock of its machine until ``end_orphan`` ends it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inferometer.evaluators.plans.cells import Cell, Run
from inferometer.evaluators.plans.plan import Plan
from inferometer.manifests.errors import ConfigurationError, OutputError

_WORDS = ("argv", "stop", "slurm", "container_pid")
_SPEC, _RESULT, _LOG, _DATA, _STOP = "run.json", "result.json", "log.txt", "data", "stop"
_CELLS, _LOCK = "cells.json", "driver.lock"
_PIDS = "processes.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_START = 18
"""The place of the start time in /proc/PID/stat after the name, which stands in brackets."""
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
        locks: The folder of the files that runs on one machine lock, one after the other.
        lock: The name of that file; empty for that of the machine of the process.
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
    lock: str = ""
    slurm: tuple[str, ...] = ()
    container_pid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run.

    Attributes:
        path: The path of the folder.
    """

    path: Path

    @property
    def result(self) -> Path:
        """The file of the run's result."""
        return self.path / _RESULT

    @property
    def log(self) -> Path:
        """The file with the output of the command."""
        return self.path / _LOG

    @property
    def data(self) -> Path:
        """The data directory of the command, with its own database."""
        return self.path / _DATA

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables that make the command publish into the data directory of the run."""
        # an empty address is a file in that directory, whatever the configuration names
        return {"AGENT_DATA_DIR": str(self.data), "AGENT_DATABASE_ADDRESS": ""}

    def write(self, spec: RunSpec) -> None:
        """Writes the specification of the run, and removes an earlier result.

        Raises:
            OutputError: It cannot be written.
        """
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            self.result.unlink(missing_ok=True)
            (self.path / _SPEC).write_text(json.dumps(asdict(spec)), encoding="utf-8")
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def read(self) -> RunSpec:
        """Reads the specification of the run.

        Raises:
            ConfigurationError: It cannot be read.
        """
        try:
            content: dict[str, Any] = json.loads((self.path / _SPEC).read_text(encoding="utf-8"))
            words = {name: tuple(content[name]) for name in _WORDS if name in content}
            return RunSpec(**{**content, **words})
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigurationError(f"{self.path}: is no folder of a run: {error}") from error


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan as its folder stores it.

    Attributes:
        name: The name of the plan.
        description: The purpose of the plan.
        repeat: How often each cell runs.
        cells: Its cells, in the order of its variables.
    """

    name: str
    description: str
    repeat: int
    cells: tuple[Cell, ...]

    @property
    def runs(self) -> Iterator[Run]:
        """Its runs, by cell."""
        return (Run(cell, number) for cell in self.cells for number in range(1, self.repeat + 1))


@dataclass(frozen=True, slots=True)
class PlanFolder:
    """The folder of a plan.

    Attributes:
        path: The path of the folder.
    """

    path: Path

    @property
    def stop(self) -> Path:
        """The file whose presence asks the driver to stop after the current runs."""
        return self.path / _STOP

    @property
    def cells(self) -> Path:
        """The file that ``keep`` writes."""
        return self.path / _CELLS

    @property
    def lock(self) -> Path:
        """The file that the driver locks."""
        return self.path / _LOCK

    @property
    def is_driven(self) -> bool:
        """Returns whether a driver has locked the folder."""
        try:
            with self.lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def keep(self, plan: Plan, cells: Iterable[Cell]) -> None:
        """Stores the cells of a plan as the driver runs them, for readers that lack the plan's file.

        Raises:
            OutputError: They cannot be written.
        """
        content = {
            "name": plan.name,
            "description": plan.description,
            "repeat": plan.repeat,
            "cells": [asdict(each) for each in cells],
        }
        beside = self.path / f".{_CELLS}.{os.getpid()}"
        try:
            beside.write_text(json.dumps(content), encoding="utf-8")
            beside.replace(self.cells)
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def kept(self) -> KeptPlan | None:
        """Returns the plan that ``keep`` last wrote; None if there is none that can be read."""
        try:
            content = json.loads(self.cells.read_text(encoding="utf-8"))
            cells = tuple(Cell(**{**each, "words": tuple(each["words"])}) for each in content["cells"])
            return _whole(KeptPlan(content["name"], content["description"], content["repeat"], cells))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def run(self, run: Run) -> RunFolder:
        """Returns the folder of a run."""
        return RunFolder(self.path / "runs" / run.key)


def _whole(kept: KeptPlan) -> KeptPlan:
    """Returns the plan, if each of its parts has the right type."""
    typed = (
        isinstance(kept.name, str),
        isinstance(kept.description, str),
        isinstance(kept.repeat, int),
        all(isinstance(cell.id, str) for cell in kept.cells),
        all(isinstance(each, dict) for cell in kept.cells for each in (cell.options, cell.parameters)),
    )
    if not all(typed):
        raise TypeError("a part of it is of another type")
    return kept


def note_command(folder: RunFolder, command: int) -> None:
    """Records this process and that of its command, which leads its own session."""
    processes = [[pid, _began(pid)] for pid in (os.getpid(), command)]
    with suppress(OSError):  # what is not noted goes on, and the next run waits for it
        (folder.path / _PIDS).write_text(json.dumps(processes), encoding="utf-8")


def end_orphan(folder: RunFolder) -> None:
    """Ends the command of a run whose process is dead, with its whole process group and its container."""
    try:
        (owner, owner_began), (command, began) = json.loads((folder.path / _PIDS).read_text(encoding="utf-8"))
        is_orphan = (
            began is not None and _began(command) == began and _began(owner, zombie=False) != owner_began
        )
        if not is_orphan or os.getsid(command) != command:
            return
        os.killpg(command, signal.SIGKILL)
        stop_container(folder.read().stop)
    except (OSError, ValueError, TypeError, RecursionError, ConfigurationError):
        return  # nothing is noted, or it has just ended


def stop_container(words: Sequence[str]) -> None:
    """Ends a container, since ending the engine's client does not; does nothing without words."""
    if words:
        subprocess.run(words, timeout=_STOPPING_S, check=False)  # noqa: S603 - what the plan says


def _began(pid: int, *, zombie: bool = True) -> str | None:
    """Returns when a process began, which tells it from others with the same id; None if it does not exist.

    Args:
        pid: The process id.
        zombie: Whether a process that has ended counts until its parent has waited for it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = stat.rpartition(")")[2].split()
        boot = _BOOT.read_text(encoding="ascii").strip()
        return None if state == "Z" and not zombie else f"{boot} {fields[_START]}"
    except (OSError, IndexError, ValueError):
        return None
