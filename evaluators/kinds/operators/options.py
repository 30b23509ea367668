"""The options of ``agent op run`` that evaluations keep, which define how single operators are measured.

To add an option, add a field to ``OperatorOptions``. Help shows the options, so the module imports little.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from inferometer.evaluators.jobs.options import (
    COUNT,
    NOT_NEGATIVE,
    OPERATOR_DTYPES,
    OPERATOR_VALUES,
    POSITIVE,
    SEED,
    Range,
    check_options,
    declared,
    values_of,
)
from inferometer.manifests.errors import ConfigurationError, suggestion


class Mode(str, Enum):
    """The work that a time includes."""

    FORWARD = "forward"
    """The operator as in inference."""
    BACKWARD = "backward"
    """The gradients alone, after a forward pass that is not timed."""
    BOTH = "forward_backward"
    """A forward pass that keeps the data for the gradients, followed by the gradients."""


PROFILERS = {
    "native": (Mode.FORWARD.value, Mode.BACKWARD.value),
    "python": (Mode.FORWARD.value, Mode.BOTH.value),
}
"""The profilers of opperf, each with the modes that have its times."""


class Cache(str, Enum):
    """The content of the caches when a run begins."""

    HOT = "hot"
    """The inputs of the previous run, as far as they fit."""
    COLD = "cold"
    """Other inputs: runs cycle through copies that together exceed the last-level cache."""


def _read_dtype(name: str) -> str:
    known = name.lower()
    if known not in OPERATOR_DTYPES:
        raise ConfigurationError(f'unknown dtype "{name}"; {suggestion(name, OPERATOR_DTYPES)}')
    return OPERATOR_DTYPES[0] if known == "float" else known


def _read_cache(name: str) -> Cache:
    known = [each.value for each in Cache]
    if name.lower() not in known:
        raise ConfigurationError(f'unknown cache "{name}"; {suggestion(name, known)}')
    return Cache(name.lower())


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """How rows were measured.

    Attributes:
        budget_s: The maximum time for a row, including its warm-up.
        warmup: The minimum number of warm-up runs per row; fewer if these take half of the budget.
    """

    dtype: str = declared(
        OPERATOR_DTYPES[0],
        "Element type; float means float32.",
        choices=OPERATOR_DTYPES,
        ignores_case=True,
        made=_read_dtype,
    )
    cache: Cache = declared(
        Cache.HOT,
        "cold uses other inputs for each run, which together exceed the last-level cache.",
        choices=("hot", "cold"),
        ignores_case=True,
        made=_read_cache,
    )
    target_percent: float | None = declared(
        0.5,
        "Measure until the half-width of the 95 % interval of p50 is at most this share of it, or until "
        "it gets no narrower; 0 for the whole budget.",
        "PERCENT",
        within=NOT_NEGATIVE,
        flags=("--target_ci",),
        argument="target_ci",
    )
    budget_s: float = declared(
        0.5,
        "The maximum time for a row.",
        "S",
        within=POSITIVE,
        flags=("--time_budget",),
        argument="time_budget",
    )
    runs: int | None = declared(
        None, "Measure this many runs instead.", "N", within=COUNT, flags=("--runs", "-r")
    )
    warmup: int = declared(
        3,
        "The minimum number of warm-up runs, for each row.",
        "N",
        within=NOT_NEGATIVE,
        flags=("--warmup", "-w"),
    )
    seed: int = declared(0, "Seed of the inputs.", "N", within=SEED)
    processes: int = declared(1, "Fresh processes that measure each row, in turn.", "N", within=Range(1, 100))
    values: str = declared(
        OPERATOR_VALUES[0],
        "Values of the inputs: random values from the table, zeros or ones.",
        choices=OPERATOR_VALUES,
        ignores_case=True,
    )

    @classmethod
    def of(cls, values: MutableMapping[str, Any], *, arguments: bool = False) -> OperatorOptions:
        """Removes the options from ``values``, by field or the library's ``arguments``, and returns them.

        Raises:
            ConfigurationError: A value is not valid.
        """
        options = cls(**values_of(cls, values, arguments=arguments))
        check_options(options)
        return replace(options, target_percent=options.target_percent or None)
