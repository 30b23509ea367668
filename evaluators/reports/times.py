"""Columns of a summary's times in milliseconds, with the ends of their 95 % intervals, and their values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from inferometer.evaluators.reports.base import Column, in_ms


def time_columns(
    key: str, heading: str, details: Mapping[str, int], intervals: Collection[str]
) -> Iterator[Column]:
    """Yields a column ``key_NAME`` for each figure, and after it those of its interval's ends.

    Args:
        key: The beginning of the keys, with the unit: ``latency_ms``.
        heading: The beginning of the headings; empty for none.
        details: The ``detail`` of each figure's column, by the figure's name.
        intervals: The names of the times that have an interval.
    """
    for name, detail in details.items():
        shown = " ".join(filter(None, (heading, name.replace("_", " "))))
        yield Column(f"{key}_{name}", f"{shown} (ms)", detail=detail)
        if name in intervals:
            yield Column(f"{key}_{name}_low", f"{shown} low (ms)", detail=3)
            yield Column(f"{key}_{name}_high", f"{shown} high (ms)", detail=3)


def time_values(
    key: str, summary: object, names: Collection[str], intervals: Collection[str]
) -> dict[str, float | None]:
    """Returns the values of ``time_columns``, from the attributes ``NAME_ns`` and ``NAME_interval_ns``."""
    values = {f"{key}_{name}": in_ms(getattr(summary, f"{name}_ns")) for name in names}
    for name in intervals:
        low_ns, high_ns = getattr(summary, f"{name}_interval_ns") or (None, None)
        values |= {f"{key}_{name}_low": in_ms(low_ns), f"{key}_{name}_high": in_ms(high_ns)}
    return values
