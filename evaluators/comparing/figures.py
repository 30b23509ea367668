"""The names of the figures that are compared, and what is said of each."""

from __future__ import annotations

import re
from collections.abc import Sequence

from manifests.errors import ConfigurationError, suggestion

THROUGHPUT = "throughput"
MAX_QPS = "max_qps"
TOP1 = "top1"
FIGURES = ("p50", "p90", "p99", THROUGHPUT)
"""What is compared of times if nothing else is asked for, in order."""


def percent_of(figure: str) -> float | None:
    """The percentile of latency that a figure is, such as 99.9 for ``p99.9``; None for another figure."""
    match = re.fullmatch(r"p(\d{1,2}(\.\d+)?)", figure)
    return float(match[1]) if match and float(match[1]) > 0 else None


def higher_is_better(figure: str) -> bool:
    """Whether more of it is better."""
    return percent_of(figure) is None


def parse_figures(text: str) -> tuple[str, ...]:
    """Reads names of figures, with commas between them; each counts once.

    Raises:
        ConfigurationError: There is none, or there is no such figure.
    """
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigurationError("figures names none; give some of " + ", ".join((*FIGURES, MAX_QPS, TOP1)))
    for name in names:
        if percent_of(name) is None and name not in (THROUGHPUT, MAX_QPS, TOP1):
            known = suggestion(name, [*FIGURES, MAX_QPS, TOP1])
            raise ConfigurationError(f'unknown figure "{name}"; {known}')
    return names


def listed(figures: Sequence[str]) -> str:
    """Names one after the other, for a sentence."""
    return ", ".join(figures[:-1]) + f" and {figures[-1]}" if len(figures) > 1 else "".join(figures)
