"""Stopping a run in good order on Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

import click
from typing_extensions import Self


class StopRequest:
    """While it is entered, SIGINT and SIGTERM raise KeyboardInterrupt.

    After ``begin_batches``, the first of them asks to stop after the current batch instead.

    Args:
        stops: What is said then.
    """

    def __init__(self, stops: str = "stopping after this batch") -> None:
        self._stops = stops
        self._requested = False
        self._in_batches = False
        self._before: dict[signal.Signals, object] = {}

    def __call__(self) -> bool:
        """Whether a stop was asked for."""
        return self._requested

    def begin_batches(self) -> None:
        """Says that batches are run from here on: what came before, such as a download, is not waited for."""
        self._in_batches = True

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
        if self._requested or not self._in_batches:
            raise KeyboardInterrupt
        self._requested = True
        click.echo(f"{self._stops} (again to stop at once)", err=True)
