"""Runs on a Slurm cluster: a job for each, which Slurm starts again after the loss of its node."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inferometer.evaluators.plans.plan import SlurmOptions
from inferometer.evaluators.plans.running.local import PROCESS
from inferometer.evaluators.plans.running.places import JobNews
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
_FORMAT = "JobID:20,State:24,RestartCnt:12,NodeList:64"
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

    @property
    def capacity(self) -> int:
        """How many jobs may be queued at once."""
        return self.options.capacity

    def start(self, folder: Path) -> str:
        """Submits a job.

        Raises:
            ConfigurationError: sbatch refuses it, or is not installed.
        """
        words = ["sbatch", "--parsable", "--requeue", "--open-mode=append"]
        words += [f"--job-name={folder.name}", f"--output={folder / 'slurm.txt'}", f"--chdir={folder}"]
        words += ["--exclusive"] * self.options.exclusive
        run = shlex.join([sys.executable, "-m", PROCESS, str(folder)])
        # exec, because Slurm's signals go to the shell, which would leave Python running
        script = "\n".join(["#!/bin/bash", *self.options.setup, f"exec {run}", ""])
        answer = _asked([*words, *self.options.arguments], script)
        return answer.strip().partition(";")[0]

    def look(self, jobs: Iterable[str]) -> Mapping[str, JobNews]:
        """See ``Place``. While Slurm does not answer for a while, nothing is new.

        Raises:
            ConfigurationError: It has not answered many times in a row; jobs may go on.
        """
        wanted = set(jobs)
        if not wanted:
            return {}
        try:
            answer = _asked(["squeue", "--me", "--noheader", "--states=all", f"--Format={_FORMAT}"])
        except ConfigurationError:
            self._unanswered += 1
            if self._unanswered >= _MOST_UNANSWERED:
                raise
            return {}
        self._unanswered = 0
        found = {}
        for line in answer.splitlines():
            job, state, restarts, *nodes = line.split()
            if job in wanted:
                where = f" on {nodes[0]}" if nodes else ""
                ended = state in _ENDED
                reason = f"its job {job} is {state.lower().replace('_', ' ')}{where}"
                found[job] = JobNews(ended, reason, int(restarts))
        unknown = "Slurm does not know its job {} any more"
        return {job: found.get(job, JobNews(True, unknown.format(job))) for job in wanted}


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
