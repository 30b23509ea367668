"""A comparison as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evaluators.comparing.figures import MAX_QPS, THROUGHPUT, TOP1, percent_of
from evaluators.comparing.verdict import Ratio
from evaluators.reports.base import Column, Row

COLUMNS = (
    Column("figure", "figure"),
    Column("unit", "unit"),
    Column("a", "A"),
    Column("b", "B"),
    Column("ratio", "B / A", decimals=4),
    Column("ratio_low", "low", decimals=4),
    Column("ratio_high", "high", decimals=4),
    Column("threshold", "threshold", decimals=4),
    Column("verdict", "verdict"),
)
"""``a`` and ``b`` are in the row's ``unit``; ``ratio_low`` and ``ratio_high`` are its 95 % interval."""
_NS_PER_MS = 1_000_000
_UNITS = {MAX_QPS: "queries/s", TOP1: "share"}


def rows_of(ratios: Sequence[Ratio], counted: str) -> Iterator[Row]:
    """Yields a row a figure.

    Args:
        ratios: The figures.
        counted: What throughput counts, such as ``inputs``.
    """
    for ratio in ratios:
        latency = percent_of(ratio.figure) is not None
        scale = _NS_PER_MS if latency else 1
        unit = "ms" if latency else f"{counted}/s" if ratio.figure == THROUGHPUT else _UNITS[ratio.figure]
        yield {
            "figure": ratio.figure,
            "unit": unit,
            "a": ratio.a / scale,
            "b": ratio.b / scale,
            "ratio": ratio.value,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "threshold": ratio.threshold,
            "verdict": ratio.verdict.value,
        }
