"""Stop requests from Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

import click
from typing_extensions import Self


class StopRequest:
    """A context manager that raises KeyboardInterrupt on SIGINT and SIGTERM.

    Between ``begin`` and ``end``, the first signal requests a stop instead.
    """

    def __init__(self) -> None:
        self._stops: str | None = None
        self._requested = False
        self._before: dict[signal.Signals, object] = {}

    def __call__(self) -> bool:
        """Returns whether a stop was requested."""
        return self._requested

    def begin(self, stops: str) -> None:
        """Clears an earlier request, and marks the start of work that the next request allows to finish.

        Args:
            stops: Printed on stderr when a stop is requested, such as "stopping after this batch".
        """
        self._requested = False
        self._stops = stops

    def end(self) -> bool:
        """Returns whether a stop was requested; from now on, a signal interrupts at once."""
        requested, self._requested, self._stops = self._requested, False, None
        return requested

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # it came from signal.signal itself

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._requested or self._stops is None:
            raise KeyboardInterrupt
        self._requested = True
        click.echo(f"{self._stops} (again to stop at once)", err=True)
