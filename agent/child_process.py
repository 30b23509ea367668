"""Child processes: their start, their messages, and their end, at the latest with the parent's.

They are fresh Python processes, which do not run the script of this process.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from inferometer.agent.hardware.allocator import use_allocator_of_environment
from inferometer.manifests.errors import ConfigurationError, DatasetError

GOVERNED = (signal.SIGINT, signal.SIGTERM)
"""The signals that a terminal or a queue sends to all processes of a command; one decides for all."""
_hiding = threading.Lock()


def start_process(process: SpawnProcess) -> None:
    """Starts a process that runs a function of a module.

    The ``GOVERNED`` signals are blocked in it until it can ignore them; it must unblock them itself.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GOVERNED)
    try:
        with _without_script():
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_script() -> Iterator[None]:
    """Hides the origin of the main module.

    Otherwise ``multiprocessing`` imports it in the fresh process, because the work may need its functions; a
    script that calls the library without ``if __name__ == "__main__"`` would start over in that process.
    """
    with _hiding:
        names = vars(sys.modules["__main__"])
        kept: dict[str, Any] = {name: names[name] for name in ("__spec__", "__file__") if name in names}
        names.update(dict.fromkeys(kept))
        try:
            yield
        finally:
            names.update(kept)


CONTEXT = multiprocessing.get_context("spawn")
_MOST_END_S = 5.0
_POLL_S = 0.05


@dataclass(eq=False)
class ChildProcess:
    """A fresh Python process and the connection to it.

    It ignores SIGINT and SIGTERM, which a terminal or a queue sends to all processes of a command: the parent
    process decides when it ends. It also has to end when the parent process has ended. ``waiting`` is the
    number of messages that it has not answered yet; the code that uses it maintains it.
    """

    name: str
    process: SpawnProcess
    connection: Connection
    waiting: int = 0

    def send(self, message: Any) -> None:
        """Sends a message; raises DatasetError if the process has ended."""
        try:
            self.connection.send(message)
        except OSError as error:
            raise DatasetError(self.early_end()) from error

    def receive(self) -> Any:
        """Waits for a message and returns it; raises DatasetError if the process has ended."""
        try:
            return self.connection.recv()
        except (EOFError, OSError) as error:  # also in the middle of a message
            raise DatasetError(self.early_end()) from error

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended; messages may still be in the connection."""
        return self.process.exitcode is not None

    def join(self, timeout_s: float) -> None:
        """Waits until the process has ended, or for ``timeout_s``."""
        deadline_s = time.monotonic() + timeout_s
        while not self.has_ended and (left_s := deadline_s - time.monotonic()) > 0:
            wait([self.process.sentinel], min(left_s, _POLL_S))  # what it started holds the sentinel open

    def early_end(self, early: str = " before it was complete") -> str:
        """Waits for a process whose connection is closed, and returns the message for its ``early`` end.

        It kills the process if that does not end in time.
        """
        self.join(_MOST_END_S)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join()
            return f"{self.name} closed its connection{early}, and was killed"
        if code >= 0:
            return f"{self.name} ended with code {code}{early}"
        cause = "; the kernel does that when memory runs out" if -code == signal.SIGKILL else ""
        return f"{self.name} was ended by {signal.Signals(-code).name}{early}{cause}"


def start_child(name: str, run: Callable[..., None], *given: Any, daemon: bool = True) -> ChildProcess:
    """Starts a process that runs ``run(*given, connection)``, a function of a module.

    A daemon cannot start processes itself. Other processes have to be ended before this one can end.

    Raises:
        ConfigurationError: This process is a daemon.
    """
    if multiprocessing.current_process().daemon:
        raise ConfigurationError(f"a daemonic process cannot start {name}; create this one with daemon=False")
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_run, args=(run, *given, theirs), name=name, daemon=daemon)
    try:
        start_process(process)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return ChildProcess(name, process, ours)


def end_children(children: Sequence[ChildProcess]) -> None:
    """Closes the connections, and kills processes that do not end in time; may be called repeatedly."""
    for child in children:
        child.connection.close()
    deadline_s = time.monotonic() + _MOST_END_S
    for child in children:
        child.join(deadline_s - time.monotonic())
        if child.process.is_alive():
            child.process.kill()
            child.process.join()


def _run(run: Callable[..., None], *given: Any) -> None:
    for number in GOVERNED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GOVERNED)
    use_allocator_of_environment()
    run(*given)


def sent(connection: Connection, message: Any) -> bool:
    """Sends a message from a child process; returns False if the parent has closed the connection."""
    with suppress(OSError):
        connection.send(message)
        return True
    return False


def received(connection: Connection) -> Any:
    """Waits for a message in a child process; returns None if the parent has closed the connection."""
    with suppress(EOFError, OSError):
        return connection.recv()
    return None
