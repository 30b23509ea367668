"""Cases of a plan with figures that are written down, for reports."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, TypeAlias

from inferometer.evaluators.plans.cells import Cell
from inferometer.evaluators.plans.reporting.cases import Case, Figure

Given: TypeAlias = float | tuple[float, float, float]
"""A value, alone or with the ends of its interval."""


def case(
    figures: Mapping[str, Given],
    /,
    *,
    doubts: str = "",
    told: Mapping[str, Any] | None = None,
    **options: Any,
) -> Case:
    """A case of a cell with some options; ``told`` is what reports say of it beside."""
    given = {name.replace("__", "."): value for name, value in options.items()}
    own = {name: value for name, value in given.items() if "." not in name}
    cell_id = hashlib.sha256(repr(sorted(given.items())).encode()).hexdigest()[:12]
    measured = {
        name: Figure(*each, count=3) if isinstance(each, tuple) else Figure(each)
        for name, each in figures.items()
    }
    cell = Cell(cell_id, ("predict", "dataset"), own, given)
    return Case(cell, {**given, **(told or {})}, measured, doubts)
