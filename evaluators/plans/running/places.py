"""The places where the runs of a plan execute: this machine, served agents, or a Slurm cluster."""

from __future__ import annotations

import hashlib
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Protocol

from inferometer.evaluators.plans.cells import Cell, Run, tasks_of
from inferometer.evaluators.plans.plan import Interpreter, SlurmOptions
from inferometer.evaluators.plans.running.folder import (
    AGENTS_PLACE,
    SLURM_PLACE,
    Result,
    RunFolder,
    end_orphan,
    read_result,
)
from inferometer.manifests.errors import AgentError, ConfigurationError, OutputError, explained, one_line

PROCESS = "inferometer.evaluators.plans.running.run_process"
_ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
}
"""The states of jobs that have ended (squeue's manual, "JOB STATE CODES"); a requeued job is pending."""
_WIDTHS = {"JobID": 20, "State": 24, "RestartCnt": 12, "NodeList": 64, "Name": 64}
_FORMAT = ",".join(f"{name}:{width}" for name, width in _WIDTHS.items())
_PLAN_LENGTH = 8
_COMMAND_S = 60.0
_MOST_UNANSWERED = 60


@dataclass(frozen=True, slots=True)
class JobNews:
    """The state of a job.

    Attributes:
        reason: How it ended, or its current state, in one line.
        restarts: How often the place has restarted it.
        counts: Whether an end without a result counts towards the failure of the run.
        void: Whether to discard a result of the run, because the machine it ran on was not available.
    """

    ended: bool
    reason: str
    restarts: int = 0
    counts: bool = True
    void: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """The resource that a run gets from a place with several machines, not all of which run every cell.

    Attributes:
        words: The words to add to its command line.
        machines: The names of the locks that it holds while it runs; empty for those of its process.
    """

    words: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()


class Place(Protocol):
    """A place where the processes of runs execute.

    Attributes:
        name: The name of the place in the journal; a place does not look for jobs of another one.
        survives: Whether its jobs continue when the driver ends.
        poll_s: The time between two polls of its jobs, in seconds.
    """

    name: str
    survives: bool
    poll_s: float

    @property
    def capacity(self) -> int:
        """The number of jobs that the place accepts at once."""
        ...

    def start(self, folder: Path) -> str:
        """Starts the process of the run in a folder, and returns the id of its job.

        Raises:
            InferometerError: It cannot be started here or anywhere else, so the plan ends.
        """
        ...

    def look(self, jobs: Iterable[str]) -> Mapping[str, JobNews]:
        """Returns the state of some jobs; jobs whose state has not changed may be omitted."""
        ...


class LocalPlace:
    """This machine; see ``Place``. Processes that it has started end with this process.

    Args:
        environment: Variables for its processes that no file stores, such as a secret.
    """

    name = "local"
    survives = False
    capacity = 1
    poll_s = 0.05

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = {**os.environ, **(environment or {})}
        self._started: dict[str, tuple[subprocess.Popen[bytes], RunFolder]] = {}

    def start(self, folder: Path) -> str:
        """See ``Place``."""
        started = explained(OutputError, f"{folder}: no process can be started")
        with started, (folder / "process.txt").open("wb") as errors:
            process = subprocess.Popen(  # noqa: S603 - this interpreter
                [sys.executable, "-m", PROCESS, str(folder), "--linked"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=self._environment,
                start_new_session=True,  # Ctrl-C in a terminal is for the driver alone
            )
        job = f"{os.getpid()}:{process.pid}"
        self._started[job] = process, RunFolder(folder)
        return job

    def look(self, jobs: Iterable[str]) -> Mapping[str, JobNews]:
        """See ``Place``. Jobs of an earlier driver have ended with it."""
        found = {job: JobNews(True, "the driver ended", counts=False) for job in jobs}
        for job in found.keys() & self._started.keys():
            process, folder = self._started[job]
            if (code := process.poll()) is None:
                del found[job]
                continue
            if process.stdin is not None:
                process.stdin.close()
            end_orphan(folder)
            found[job] = JobNews(True, f"its process ended with code {code}")
        return found


@dataclass(slots=True)
class AgentsPlace:
    """Served agents; see ``Place``. The driver asks ``claim`` for agents before it starts a run.

    A run has as many hosts as its cell has nodes, and on each of them as many agents as the cell has tasks on
    a node. An agent that a run could not reach gets no further runs.

    Attributes:
        agents_of: Returns the addresses of the agents that can run a cell, or raises an error if there is
            none.
        hosts: The host of each address. Agents on one host never run at the same time.
        unreachable: Returns whether a result says that the agent could not be reached.
        local: Starts the processes, which call the agents.
    """

    agents_of: Callable[[Cell], Sequence[str]]
    hosts: Mapping[str, str]
    unreachable: Callable[[Result], bool]
    local: Place = field(default_factory=LocalPlace)
    name: str = AGENTS_PLACE
    survives: bool = False
    poll_s: float = 0.05
    _claimed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _working: dict[str, tuple[tuple[str, ...], Path]] = field(default_factory=dict)
    _away: dict[str, str] = field(default_factory=dict)

    @property
    def capacity(self) -> int:
        """The number of hosts with an agent that may answer; at least 1, so that waiting runs get errors."""
        return max(1, len({host for address, host in self.hosts.items() if address not in self._away}))

    def claim(self, run: Run) -> Claim | None:
        """Claims free agents for the run that starts next; None if the agents that can run it are busy.

        Raises:
            InferometerError: No agents can run it, or too few of those that can run it answer.
        """
        able = self.agents_of(run.cell)
        left = [each for each in able if each not in self._away]
        if not agents_for(run.cell, left, self.hosts):
            reasons = "; ".join(self._away[each] for each in able if each in self._away)
            few = "too few agents are" if left else "no agent is"
            raise AgentError(f"{few} left that can run it: {reasons}")
        working = [*self._claimed.values(), *(addresses for addresses, _ in self._working.values())]
        busy = {self.hosts[address] for addresses in working for address in addresses}
        chosen = agents_for(run.cell, [each for each in left if self.hosts[each] not in busy], self.hosts)
        if not chosen:
            return None
        self._claimed[run.key] = chosen
        machines = dict.fromkeys(self.hosts[each] for each in chosen)
        return Claim((f"--agent={','.join(chosen)}",), tuple(machines))

    def start(self, folder: Path) -> str:
        """Starts the process of a run that has claimed agents; see ``Place``."""
        addresses = self._claimed.pop(folder.name)
        job = f"{','.join(addresses)}/{self.local.start(folder)}"
        self._working[job] = (addresses, folder)
        return job

    def look(self, jobs: Iterable[str]) -> Mapping[str, JobNews]:
        """See ``Place``. Jobs of an earlier driver have ended with it."""
        by_process = {job.rpartition("/")[2]: job for job in jobs}
        found = {by_process[each]: news for each, news in self.local.look(by_process).items()}
        for job in found.keys() & self._working.keys():
            if found[job].ended:
                found[job] = self._ended(found[job], *self._working.pop(job))
        return found

    def _ended(self, news: JobNews, addresses: Sequence[str], folder: Path) -> JobNews:
        result = read_result(RunFolder(folder).result)
        if result is None:
            return JobNews(True, f"{news.reason}, with agent {','.join(addresses)}", counts=news.counts)
        if not self.unreachable(result):
            return news
        named = [each for each in addresses if f"{each}:" in result.reason]
        self._away.update(dict.fromkeys(named or addresses, result.reason))
        return JobNews(True, result.reason, void=True)


def agents_for(cell: Cell, addresses: Iterable[str], hosts: Mapping[str, str]) -> tuple[str, ...]:
    """Returns as many of some agents as a cell has tasks, on as many hosts as it has nodes.

    Returns:
        The addresses, by host; empty if there are too few.

    Raises:
        ConfigurationError: The cell's number of nodes or tasks is wrong.
    """
    nodes, tasks = tasks_of(cell)
    by_host: dict[str, list[str]] = {}
    for each in addresses:
        by_host.setdefault(hosts[each], []).append(each)
    found = [each[:tasks] for each in by_host.values() if len(each) >= tasks][:nodes]
    return tuple(address for each in found for address in each) if len(found) == nodes else ()


def host_of(name: str) -> str:
    """Returns the identity of a host: its first address in text order, IPv4 first, or its unresolvable name.

    The IPv6 loopback address is replaced by that of IPv4; other loopback addresses are separate hosts.
    """
    plain = name.strip("[]").casefold()
    try:
        found = socket.getaddrinfo(plain, None, type=socket.SOCK_STREAM)
    except OSError:
        return plain
    *_, address = min(found, key=lambda each: (each[0] != socket.AF_INET, each[4]))
    return "127.0.0.1" if address[0] == "::1" else str(address[0])


@dataclass
class SlurmPlace:
    """A Slurm cluster whose nodes share the folder of the plan; see ``Place``.

    How jobs ended is read from squeue, not the accounting database. Jobs continue without a driver.
    """

    options: SlurmOptions = field(default_factory=SlurmOptions)
    name: str = SLURM_PLACE
    survives: bool = True
    poll_s: float = 1.0
    _unanswered: int = 0
    _looked_at: set[str] = field(default_factory=set)
    _unnoted: dict[str, str] | None = None

    @property
    def capacity(self) -> int:
        """The number of jobs that may be queued at once."""
        return self.options.capacity

    def start(self, folder: Path) -> str:
        """Submits a job, or adopts one that a driver submitted but did not record before it was killed.

        Raises:
            ConfigurationError: sbatch refuses the job, or is not installed.
        """
        if self._unnoted is None:
            jobs = (job for job in _listed() if job.state not in _ENDED and job.id not in self._looked_at)
            self._unnoted = {job.name: job.id for job in jobs}
        if adopted := self._unnoted.pop(_name(folder), None):
            return adopted
        words = ["sbatch", "--parsable", "--requeue", "--open-mode=append"]
        words += [f"--output={folder / 'slurm.txt'}", f"--chdir={folder}"]
        own = RunFolder(folder).read().slurm
        # the name comes last, because jobs are found by it
        words += [*self._options(own), f"--job-name={_name(folder)}"]
        python = Interpreter(python=self.options.python).executable
        run = shlex.join([python, "-m", PROCESS, str(folder)])
        # exec, because Slurm's signals go to the shell, which would leave Python running
        script = "\n".join(["#!/bin/bash", *self.options.setup, f"exec {run}", ""])
        try:
            return _asked(words, script).strip().partition(";")[0]
        except ConfigurationError as error:
            which = f", with {shlex.join(own)}" if own else ""
            raise ConfigurationError(f"{error} (run {folder.name}{which})") from error

    def refusal(self, own: Sequence[str]) -> str:
        """Returns why Slurm would refuse jobs, in one line; empty if it accepts them. Submits nothing.

        Args:
            own: The sbatch options of a cell.
        """
        try:
            _asked(["sbatch", "--test-only", *self._options(own)], "#!/bin/bash\n")
        except ConfigurationError as error:
            return f"{error}, with {shlex.join(own)}" if own else str(error)
        return ""

    def look(self, jobs: Iterable[str]) -> Mapping[str, JobNews]:
        """See ``Place``. While Slurm temporarily does not answer, the result is empty.

        Raises:
            ConfigurationError: Slurm has not answered many times in a row; jobs may continue.
        """
        wanted = set(jobs)
        self._looked_at |= wanted
        if not wanted:
            return {}
        try:
            listed = _listed()
        except ConfigurationError:
            self._unanswered += 1
            if self._unanswered >= _MOST_UNANSWERED:
                raise
            return {}
        self._unanswered = 0
        found = {job.id: job.news for job in listed if job.id in wanted}
        unknown = "Slurm does not know its job {} any more"
        return {job: found.get(job, JobNews(True, unknown.format(job))) for job in wanted}

    def _options(self, own: Sequence[str]) -> list[str]:
        """Returns the options of the plan followed by those of a cell; the last of equal options applies."""
        return [*["--exclusive"] * self.options.exclusive, *self.options.arguments, *own]


@dataclass(frozen=True, slots=True)
class _Job:
    """One line of squeue's output."""

    id: str
    state: str
    restarts: int
    name: str
    node: str

    @property
    def news(self) -> JobNews:
        where = f" on {self.node}" if self.node else ""
        reason = f"its job {self.id} is {self.state.lower().replace('_', ' ')}{where}"
        return JobNews(self.state in _ENDED, reason, self.restarts)


def _listed() -> list[_Job]:
    """Returns the jobs of this user that squeue lists; raises ConfigurationError if squeue fails."""
    answer = _asked(["squeue", "--me", "--noheader", "--states=all", f"--Format={_FORMAT}"])
    ends = list(accumulate(_WIDTHS.values(), initial=0))  # by width, because a name may have spaces
    jobs = []
    for line in filter(str.strip, answer.splitlines()):
        job, state, restarts, node, name = (line[begin:end].strip() for begin, end in pairwise(ends))
        jobs.append(_Job(job, state, int(restarts), name, node))
    return jobs


def _name(folder: Path) -> str:
    """Returns the name of the job of a run: its key, and the identity of its plan."""
    return f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:_PLAN_LENGTH]}"


def _asked(words: Sequence[str], text: str = "") -> str:
    """Runs a command of Slurm and returns its output.

    Raises:
        ConfigurationError: The command is not installed, fails, or does not answer; the message has its
            last line of errors.
    """
    try:
        with explained(ConfigurationError, f"{words[0]}: cannot be run"):
            done = subprocess.run(  # noqa: S603 - a command of Slurm
                words, input=text, capture_output=True, text=True, timeout=_COMMAND_S, check=False
            )
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"{words[0]}: no answer within {_COMMAND_S:g} s") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or [f"code {done.returncode}"]
        raise ConfigurationError(f"Slurm: {one_line(said[-1].removeprefix(f'{words[0]}: error: '))}")
    return done.stdout
