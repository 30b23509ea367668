"""Runs on this machine, one at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from inferometer.evaluators.plans.running.folder import RunFolder
from inferometer.evaluators.plans.running.orphans import end_orphan
from inferometer.evaluators.plans.running.places import JobNews
from inferometer.manifests.errors import OutputError

PROCESS = "inferometer.evaluators.plans.running.run_process"


class LocalPlace:
    """This machine; see ``Place``. What it has started ends with this process.

    Args:
        environment: Variables of its processes beside those of this one, which no file has, such as a secret.
    """

    name = "local"
    survives = False
    capacity = 1
    poll_s = 0.05

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = {**os.environ, **(environment or {})}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folders: dict[str, RunFolder] = {}

    def start(self, folder: Path) -> str:
        """See ``Place``."""
        try:
            with (folder / "process.txt").open("wb") as errors:
                process = subprocess.Popen(  # noqa: S603 - this interpreter
                    [sys.executable, "-m", PROCESS, str(folder), "--linked"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=self._environment,
                    start_new_session=True,  # Ctrl-C in a terminal is for the driver alone
                )
        except OSError as error:
            raise OutputError(f"{folder}: no process can be started: {error.strerror or error}") from error
        job = f"{os.getpid()}:{process.pid}"
        self._processes[job], self._folders[job] = process, RunFolder(folder)
        return job

    def look(self, jobs: Iterable[str]) -> Mapping[str, JobNews]:
        """See ``Place``. Jobs of an earlier driver have ended with it."""
        found = {job: JobNews(True, "the driver ended", counts=False) for job in jobs}
        for job in found.keys() & self._processes.keys():
            reason = self._reason(self._processes[job])
            if reason is None:
                del found[job]
            else:
                end_orphan(self._folders[job])
                found[job] = JobNews(True, reason)
        return found

    @staticmethod
    def _reason(process: subprocess.Popen[bytes]) -> str | None:
        code = process.poll()
        if code is None:
            return None
        if process.stdin is not None:
            process.stdin.close()
        return f"its process ended with code {code}"
