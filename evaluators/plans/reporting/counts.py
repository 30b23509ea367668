"""How many devices, ranks, threads or cores the cells of a plan had."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from inferometer.evaluators.plans.reporting.cases import Case, Figure
from inferometer.evaluators.plans.reporting.pictures import as_number
from inferometer.evaluators.plans.reporting.ratios import inverse
from inferometer.evaluators.plans.reporting.tables import known_figures
from inferometer.evaluators.reports.base import Value
from inferometer.manifests.errors import ConfigurationError

COUNTED = ("devices", "num_gpus", "gpus", "ranks", "num_ranks", "threads", "cell.cores", "replicas")
"""The dimensions that count what works, those that tell most first."""
_LISTS = {"gpus", "cell.cores"}
_PART = re.compile(r"\s*(\d+)(?:-(\d+))?\s*")
_RATE = re.compile(r"(_per_s|(^|_)qps)(_|$)")
_TIME = re.compile(r"(^|_)(ns|us|ms|s)(_|$)")


class Quantity(Enum):
    """What a figure is."""

    TIME = "time"
    RATE = "rate"


def quantity_of(figure: str) -> Quantity:
    """Returns whether a figure is a time or a rate, by the unit in its key.

    Raises:
        ConfigurationError: It is neither.
    """
    if _RATE.search(figure):
        return Quantity.RATE
    if _TIME.search(figure):
        return Quantity.TIME
    raise ConfigurationError(
        f'"{figure}" is neither a time nor a rate; name one whose unit is s, ms, us, per_s or qps'
    )


def rate_of(figure: Figure, quantity: Quantity) -> Figure | None:
    """Returns a rate, or one over a time; None where the value is not positive."""
    return inverse(figure) if quantity is Quantity.TIME else figure if figure.value > 0 else None


def one_figure(cases: Sequence[Case], values: Sequence[str]) -> str:
    """Returns the figure that is asked for, or the main one.

    Raises:
        ConfigurationError: Several are asked for, no case has it, or it is neither a time nor a rate.
    """
    if len(values) > 1:
        raise ConfigurationError(f"--value names {len(values)} figures; name one, a time or a rate")
    found = known_figures(cases, values)
    if not found:
        raise ConfigurationError("name a figure with --value, a time or a rate")
    quantity_of(found[0])
    return found[0]


def count_of(case: Case, name: str) -> float | None:
    """Returns the number that a dimension is; None where it is none.

    Lists of cores and GPUs, such as ``0,2-3``, are how many they name.
    """
    value = case.dimensions.get(name)
    return _listed(value) if name in _LISTS else as_number(value)


def counts(cases: Sequence[Case], name: str) -> tuple[float, ...]:
    """Returns the different numbers of a dimension, sorted."""
    found = {count_of(case, name) for case in cases}
    return tuple(sorted(number for number in found if number is not None))


def varying(cases: Sequence[Case], among: Sequence[str] = COUNTED) -> tuple[str, ...]:
    """Returns those of some dimensions whose number varies; of several with equal numbers, the first."""
    found: dict[tuple[float | None, ...], str] = {}
    for name in among:
        if len(counts(cases, name)) > 1:
            found.setdefault(tuple(count_of(case, name) for case in cases), name)
    return tuple(found.values())


def _listed(value: Value) -> float | None:
    named: set[int] = set()
    for part in str(value).split(",") if value not in (None, "") else ():
        ends = _PART.fullmatch(part)
        if ends is None:
            return None
        first, last = int(ends[1]), int(ends[2] or ends[1])
        named.update(range(first, min(last, first + 4096) + 1))
    return float(len(named)) if named else None
