"""The schedule: when each query of a run is due, fixed before the run and identified by its hash."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.load.arrivals import ArrivalProcess, Extent
from inferometer.manifests.errors import ConfigurationError

_NS_PER_S = 1_000_000_000
_UNITS_NS = {"offset_ns": 1, "offset_us": 1_000, "offset_ms": 1_000_000, "offset_s": _NS_PER_S}
_LATEST_NS = 7 * 24 * 3600 * _NS_PER_S


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """When queries are due.

    Attributes:
        offsets_ns: int64, ascending, not negative; nanoseconds from the begin of the run.
        source: Its source: an arrival process or a file.
        rate_qps: The requested rate; for a file, the mean rate from its first to its last arrival.
        seed: The seed that it was drawn from; None for a file.
    """

    offsets_ns: NDArray[np.int64]
    source: str
    rate_qps: float
    seed: int | None = None

    @classmethod
    def drawn(cls, process: ArrivalProcess, rate_qps: float, extent: Extent, seed: int) -> Schedule:
        """Returns a schedule of an arrival process; see ``ArrivalProcess.offsets_ns``."""
        return cls(process.offsets_ns(rate_qps, extent, seed), str(process), rate_qps, seed)

    @classmethod
    def read(cls, path: Path) -> Schedule:
        """Returns the schedule of a file.

        The file has one offset a line, in seconds, or is a csv with a column ``offset_ns``, ``offset_us``,
        ``offset_ms`` or ``offset_s``. Empty lines and lines that begin with ``#`` are skipped.

        Raises:
            ConfigurationError: It cannot be read; the line is named.
        """
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
            raise ConfigurationError(f"schedule {path}: cannot be read: {reason}") from error
        offsets = np.fromiter(_offsets_ns(text, path), np.int64)
        if not len(offsets):
            raise ConfigurationError(f"schedule {path}: has no offset; give one a line, in seconds")
        if len(unsorted := np.flatnonzero(np.diff(offsets) < 0)):
            number = int(unsorted[0]) + 2
            raise ConfigurationError(
                f"schedule {path}: offset {number} comes before the one above it; sort them"
            )
        span_ns = int(offsets[-1] - offsets[0])
        rate = (len(offsets) - 1) * _NS_PER_S / span_ns if span_ns else float(len(offsets))
        return cls(offsets, f"file {path.name}", rate)

    def text(self) -> str:
        """Returns what a file of it holds; ``read`` gives back the same offsets."""
        head = f"# {self.source}, {self.rate_qps:g} queries/s, seed {self.seed}, {self.checksum}\noffset_ns\n"
        return head + "".join(f"{offset}\n" for offset in self.offsets_ns.tolist())

    @property
    def checksum(self) -> str:
        """``sha256:…`` of the offsets as 64-bit little-endian integers: equal for equal times."""
        return "sha256:" + hashlib.sha256(self.offsets_ns.astype("<i8").tobytes()).hexdigest()

    @property
    def duration_ns(self) -> int:
        """The last offset."""
        return int(self.offsets_ns[-1])

    def __len__(self) -> int:
        """Returns the number of queries."""
        return len(self.offsets_ns)


def _offsets_ns(text: str, path: Path) -> Iterator[int]:
    """Yields the offsets of a file, whatever its form."""
    lines = [
        (number, line)
        for number, line in enumerate(io.StringIO(text), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        return
    column, unit_ns = 0, _NS_PER_S
    header = _cells(lines[0][1], path)
    if known := [name for name in header if name in _UNITS_NS]:
        if len(known) > 1:
            raise ConfigurationError(f"schedule {path}: has columns {' and '.join(known)}; leave one")
        column, unit_ns = header.index(known[0]), _UNITS_NS[known[0]]
        lines = lines[1:]
    for number, line in lines:
        cells = _cells(line, path)
        cell = cells[column] if column < len(cells) else ""
        try:
            offset_ns = int(cell) if unit_ns == 1 else round(float(cell) * unit_ns)
        except (ValueError, OverflowError):
            columns = ", ".join(_UNITS_NS)
            raise ConfigurationError(
                f'schedule {path}, line {number}: "{cell[:40]}" is no offset; '
                f"give seconds, or a csv with one of the columns {columns}"
            ) from None
        if not 0 <= offset_ns <= _LATEST_NS:
            raise ConfigurationError(
                f"schedule {path}, line {number}: {cell} is not within 0…{_LATEST_NS // _NS_PER_S} s"
            )
        yield offset_ns


def _cells(line: str, path: Path) -> Sequence[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line]), [])]
    except csv.Error as error:
        raise ConfigurationError(
            f'schedule {path}: "{line[:40].strip()}…" is no line of a csv: {error}'
        ) from error
