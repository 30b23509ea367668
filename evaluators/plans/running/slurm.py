"""Runs on a Slurm cluster: a job for each, which Slurm starts again after the loss of its node."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inferometer.evaluators.plans.plan import SlurmOptions
from inferometer.evaluators.plans.running.folder import RunFolder
from inferometer.evaluators.plans.running.local import PROCESS
from inferometer.evaluators.plans.running.places import JobNews
from inferometer.evaluators.plans.software.cell import python_of
from inferometer.evaluators.plans.software_section import Interpreter
from inferometer.manifests.errors import ConfigurationError, one_line

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
"""The states of a job that has ended (squeue's manual, "JOB STATE CODES"); a requeued one is pending."""
_WIDTHS = {"JobID": 20, "State": 24, "RestartCnt": 12, "NodeList": 64, "Name": 64}
_FORMAT = ",".join(f"{name}:{width}" for name, width in _WIDTHS.items())
_PLAN_LENGTH = 8
_COMMAND_S = 60.0
_MOST_UNANSWERED = 60


@dataclass
class SlurmPlace:
    """A Slurm cluster whose nodes share the folder of the plan; see ``Place``.

    Slurm's commands tell how jobs ended, without its accounting database. Jobs go on while no driver runs.
    """

    options: SlurmOptions = field(default_factory=SlurmOptions)
    name: str = "slurm"
    survives: bool = True
    poll_s: float = 1.0
    _unanswered: int = 0
    _looked_at: set[str] = field(default_factory=set)
    _unnoted: dict[str, str] | None = None

    @property
    def capacity(self) -> int:
        """How many jobs may be queued at once."""
        return self.options.capacity

    def start(self, folder: Path) -> str:
        """Submits a job, or adopts one of the run that a driver submitted and was killed before it noted.

        Raises:
            ConfigurationError: sbatch refuses it, or is not installed.
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
        python = python_of(Interpreter(python=self.options.python))
        run = shlex.join([python, "-m", PROCESS, str(folder)])
        # exec, because Slurm's signals go to the shell, which would leave Python running
        script = "\n".join(["#!/bin/bash", *self.options.setup, f"exec {run}", ""])
        try:
            return _asked(words, script).strip().partition(";")[0]
        except ConfigurationError as error:
            which = f", with {shlex.join(own)}" if own else ""
            raise ConfigurationError(f"{error} (run {folder.name}{which})") from error

    def refusal(self, own: Sequence[str]) -> str:
        """Returns why Slurm would refuse jobs, in one line; empty if it would not. It submits nothing.

        Args:
            own: The options of sbatch of a cell.
        """
        try:
            _asked(["sbatch", "--test-only", *self._options(own)], "#!/bin/bash\n")
        except ConfigurationError as error:
            return f"{error}, with {shlex.join(own)}" if own else str(error)
        return ""

    def look(self, jobs: Iterable[str]) -> Mapping[str, JobNews]:
        """See ``Place``. While Slurm does not answer for a while, nothing is new.

        Raises:
            ConfigurationError: It has not answered many times in a row; jobs may go on.
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
        """The options of the plan and then those of a cell, of which the last one counts."""
        return [*["--exclusive"] * self.options.exclusive, *self.options.arguments, *own]


@dataclass(frozen=True, slots=True)
class _Job:
    """A line of squeue."""

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
    """The jobs of this user that Slurm knows; raises ConfigurationError."""
    answer = _asked(["squeue", "--me", "--noheader", "--states=all", f"--Format={_FORMAT}"])
    return [_parsed(line) for line in answer.splitlines() if line.strip()]


def _parsed(line: str) -> _Job:
    fields = {}
    for name, width in _WIDTHS.items():  # a name may have spaces
        fields[name], line = line[:width].strip(), line[width:]
    return _Job(
        fields["JobID"], fields["State"], int(fields["RestartCnt"]), fields["Name"], fields["NodeList"]
    )


def _name(folder: Path) -> str:
    """The name of the job of a run: its key, and what tells its plan from others."""
    return f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:_PLAN_LENGTH]}"


def _asked(words: Sequence[str], text: str = "") -> str:
    """What a command of Slurm answers.

    Raises:
        ConfigurationError: It is not installed, fails, or does not answer; the message has its last line.
    """
    try:
        done = subprocess.run(  # noqa: S603 - a command of Slurm
            words, input=text, capture_output=True, text=True, timeout=_COMMAND_S, check=False
        )
    except OSError as error:
        raise ConfigurationError(f"{words[0]}: cannot be run: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"{words[0]}: no answer within {_COMMAND_S:g} s") from error
    if done.returncode:
        said = next(
            (line for line in done.stderr.splitlines()[::-1] if line.strip()), f"code {done.returncode}"
        )
        raise ConfigurationError(f"Slurm: {one_line(said.removeprefix(f'{words[0]}: error: '))}")
    return done.stdout
