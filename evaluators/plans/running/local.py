"""Runs on this machine, one at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from inferometer.evaluators.plans.running.places import JobNews
from inferometer.manifests.errors import OutputError

PROCESS = "inferometer.evaluators.plans.running.run_process"


class LocalPlace:
    """This machine; see ``Place``. What it has started ends with this process."""

    name = "local"
    capacity = 1
    poll_s = 0.05

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, folder: Path) -> str:
        """See ``Place``."""
        try:
            with (folder / "process.txt").open("wb") as errors:
                process = subprocess.Popen(  # noqa: S603 - this interpreter
                    [sys.executable, "-m", PROCESS, str(folder), "--linked"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    start_new_session=True,  # Ctrl-C in a terminal is for the driver alone
                )
        except OSError as error:
            raise OutputError(f"{folder}: no process can be started: {error.strerror or error}") from error
        job = f"{os.getpid()}:{process.pid}"
        self._processes[job] = process
        return job

    def look(self, jobs: Iterable[str]) -> Mapping[str, JobNews]:
        """See ``Place``. Jobs of an earlier driver have ended with it."""
        return {job: JobNews(True, reason) for job in jobs if (reason := self._reason(job)) is not None}

    def stop(self, job: str) -> None:
        """See ``Place``."""
        if process := self._processes.get(job):
            process.terminate()

    def _reason(self, job: str) -> str | None:
        process = self._processes.get(job)
        if process is None:
            return "the driver ended"
        code = process.poll()
        if code is None:
            return None
        if process.stdin is not None:
            process.stdin.close()
        return f"its process ended with code {code}"
