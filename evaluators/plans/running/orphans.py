"""The command of a run whose own process was killed: it goes on, and holds the lock of its machine.

The process of a run notes itself and its command in the run's folder, each with the moment at which it
began, so that no later process with the same number is taken for it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from inferometer.evaluators.plans.running.folder import RunFolder
from inferometer.manifests.errors import ConfigurationError

_FILE = "processes.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_START = 18
"""The place of the start time in /proc/PID/stat after the name, which stands in brackets."""
_STOPPING_S = 60.0


def note_command(folder: RunFolder, command: int) -> None:
    """Notes this process and the one of its command, which leads a session of its own."""
    processes = [[pid, _began(pid)] for pid in (os.getpid(), command)]
    with suppress(OSError):  # what is not noted goes on, and the next run waits for it
        (folder.path / _FILE).write_text(json.dumps(processes), encoding="utf-8")


def end_orphan(folder: RunFolder) -> None:
    """Ends the command of a run whose process is dead, with all of its group and its container."""
    try:
        (owner, owner_began), (command, began) = json.loads((folder.path / _FILE).read_text(encoding="utf-8"))
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
    """Ends a container, where ending the engine's client does not; without words, nothing."""
    if words:
        subprocess.run(words, timeout=_STOPPING_S, check=False)  # noqa: S603 - what the plan says


def _began(pid: int, *, zombie: bool = True) -> str | None:
    """When a process of this machine began, which no other has with its number; None without one.

    Args:
        pid: Its number.
        zombie: Whether one that has ended counts until its parent has waited for it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = stat.rpartition(")")[2].split()
        boot = _BOOT.read_text(encoding="ascii").strip()
        return None if state == "Z" and not zombie else f"{boot} {fields[_START]}"
    except (OSError, IndexError, ValueError):
        return None
