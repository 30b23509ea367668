"""The process of one run: it waits for its machine, runs the command, and writes the result at once.

    python -m inferometer.evaluators.plans.running.run_process FOLDER

Only one run at a time executes on a machine, or on the host of an agent: each holds a lock, which its command
inherits, so that the lock is free only after all processes of the command have ended. A run that has a result
does not run again. With ``--linked``, the process ends when the other end of its standard input closes.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from inferometer.evaluators.plans.cell_command import container_process
from inferometer.evaluators.plans.running.folder import (
    RunFolder,
    RunSpec,
    end_orphan,
    note_command,
    stop_container,
)
from inferometer.evaluators.plans.running.journal import Ended, Result, read_result, write_result
from inferometer.evaluators.plans.running.monitor import Monitor
from inferometer.manifests.errors import one_line

_OUT_OF_MEMORY = "out of memory"
_ENDED_BY = "this process was ended by"
_INTERRUPTED = 130
_ENDING_S = 5.0
_TAIL_BYTES = 4096


def main() -> None:
    """Runs the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--linked", action="store_true")
    given = parser.parse_args()
    run(RunFolder(given.folder), linked=given.linked)


def run(folder: RunFolder, *, linked: bool) -> Result:
    """Runs the command of a folder, unless it has a result, and returns the result.

    Args:
        folder: The folder of the run.
        linked: Whether the end of standard input ends it.
    """
    spec = folder.read()
    end_orphan(folder)
    machine = spec.lock or os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    with (Path(spec.locks) / f"{machine}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (known := read_result(folder.result)) is not None:
            return known
        # what an attempt that was lost has published is no result of this one
        shutil.rmtree(folder.data, ignore_errors=True)
        folder.data.mkdir(parents=True)
        result = _run(folder, spec, lock, linked=linked)
        if result.reason.startswith(_ENDED_BY):
            sys.exit(1)  # without a result: whoever ended it decides whether it runs again
        write_result(folder.result, result)
        return result


def _run(folder: RunFolder, spec: RunSpec, lock: IO[bytes], *, linked: bool) -> Result:
    environment = {**os.environ, **folder.variables, **spec.environment}
    host = socket.gethostname()
    with folder.log.open("wb") as log:
        start_ns = time.time_ns()
        try:
            process = subprocess.Popen(  # noqa: S603 - what the plan says
                spec.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                pass_fds=(lock.fileno(),),
            )
        except OSError as error:
            reason = f"{spec.argv[0]}: cannot be run: {error.strerror or error}"
            return Result(spec.key, Ended.FAILED, reason, None, host, start_ns, time.time_ns())
        note_command(folder, process.pid)
        ended_by: list[str] = []
        if linked:
            threading.Thread(target=_end_with_driver, args=(process,), daemon=True).start()
        _forward_signals(process, ended_by)
        joined = partial(container_process, spec.container_pid)
        with Monitor(process.pid, spec.monitor_s, joined) as monitor:
            monitor.start()
            try:
                process.wait(spec.timeout_s)
            except subprocess.TimeoutExpired:
                ended_by.append(f"it took longer than {spec.timeout_s:g} s")
                _end(process)
            end_ns = time.time_ns()
        if ended_by:
            stop_container(spec.stop)
    how, reason = _judged(folder, process.returncode, ended_by)
    seen = monitor.stop().document() if spec.monitor_s else None
    return Result(spec.key, how, reason, process.returncode, host, start_ns, end_ns, monitor=seen)


def _judged(folder: RunFolder, code: int, ended_by: list[str]) -> tuple[Ended, str]:
    """Returns how the command ended, and the reason."""
    if code == 0:
        return Ended.COMPLETE, ""
    last = _last_line(folder)
    if ended_by:
        timeout = ended_by[0].startswith("it took")
        return (Ended.TIMEOUT if timeout else Ended.INTERRUPTED), ended_by[0]
    if _OUT_OF_MEMORY in last.lower():
        return Ended.OUT_OF_MEMORY, last
    if code == -signal.SIGKILL:
        return Ended.OUT_OF_MEMORY, "it was ended by SIGKILL; the kernel does that where memory runs out"
    if code < 0:
        return Ended.FAILED, f"it was ended by {signal.Signals(-code).name}"
    if code == _INTERRUPTED:
        return Ended.INTERRUPTED, last or "it was interrupted"
    return Ended.FAILED, last or f"it exited with {code}"


def _last_line(folder: RunFolder) -> str:
    with suppress(OSError), folder.log.open("rb") as log:
        log.seek(0, os.SEEK_END)
        log.seek(max(0, log.tell() - _TAIL_BYTES))
        lines = log.read().decode("utf-8", "replace").splitlines()
        return next((one_line(line) for line in reversed(lines) if line.strip()), "")
    return ""


def _forward_signals(process: subprocess.Popen[bytes], ended_by: list[str]) -> None:
    """Ends the command when this process gets a signal; a queue ends it with SIGTERM."""

    def end(number: int, _: object) -> None:
        ended_by.append(f"{_ENDED_BY} {signal.Signals(number).name}")
        _end(process)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the command and all processes that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_S)
            return


def _end_with_driver(process: subprocess.Popen[bytes]) -> None:
    """Ends this process, without a result, when the driver has ended."""
    # not by sys.stdin: Python aborts at its end where a thread still reads from that
    while os.read(0, _TAIL_BYTES):
        pass
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
