"""The start of a fresh Python process, which does not run the script of this one."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from typing import Any

GOVERNED = (signal.SIGINT, signal.SIGTERM)
"""The signals that a terminal or a queue sends to all processes of a command; one process decides for all."""
_hiding = threading.Lock()


def start_process(process: SpawnProcess) -> None:
    """Starts a process whose work is a function of a module.

    Until it can ignore them, it does not notice the ``GOVERNED`` signals, which it has to unblock.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GOVERNED)
    try:
        with _without_script():
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_script() -> Iterator[None]:
    """Hides where the main module is from.

    Otherwise ``multiprocessing`` imports it in the fresh process, for functions of its own that the work may
    need; a script that calls the library without ``if __name__ == "__main__"`` would begin anew there.
    """
    with _hiding:
        names = vars(sys.modules["__main__"])
        kept: dict[str, Any] = {name: names[name] for name in ("__spec__", "__file__") if name in names}
        names.update(dict.fromkeys(kept))
        try:
            yield
        finally:
            names.update(kept)
