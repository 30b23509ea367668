"""The line on a terminal that tells how load goes while it runs."""

from __future__ import annotations

import sys
from typing import TextIO

from evaluators.loadgen.run_watch import IssuerProgress

_NS_PER_MS = 1_000_000


class LiveLine:
    """Shows the progress of one run after the other, in one line; shows nothing where stderr is no terminal.

    Args:
        search: Whether the runs are the probes of a search, which are then numbered.
        stream: Where the line goes; None for stderr.
    """

    def __init__(self, search: bool, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty()
        self._runs = 1 if search else 0
        self._elapsed_s = 0.0

    def __call__(self, progress: IssuerProgress) -> None:
        """Takes how a run goes."""
        if not self._shown:
            return
        if self._runs and progress.elapsed_s < self._elapsed_s:
            self._runs += 1
        self._elapsed_s = progress.elapsed_s
        self._stream.write(f"\r{line_of(progress, self._runs)}\033[K")
        self._stream.flush()

    def clear(self) -> None:
        """Takes the line away."""
        if self._shown:
            self._stream.write("\r\033[K")
            self._stream.flush()


def line_of(progress: IssuerProgress, probe: int = 0) -> str:
    """Returns the line; ``probe`` is the number of the probe, or 0."""
    total = f"/{progress.total}" if progress.total else ""
    p99 = "" if progress.p99_ns is None else f"  p99 {progress.p99_ns / _NS_PER_MS:.1f} ms"
    return (
        f"{f'probe {probe}  ' if probe else ''}{progress.elapsed_s:5.1f} s  {progress.sent}{total} sent  "
        f"{progress.rate_qps:.1f} answers/s{p99}  backlog {progress.waiting}"
    )
