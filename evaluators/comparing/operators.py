"""Comparison of operators: rows of two sides, ratios of p50, and verdicts that allow for many rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from inferometer.evaluators.comparing.student import student_tail
from inferometer.evaluators.comparing.verdict import Ratio, Verdict
from inferometer.evaluators.kinds.operators.figures import p50_interval, run_times
from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement, OperatorRow, RowStatus
from inferometer.evaluators.load.intervals import t_quantile_95
from inferometer.evaluators.statistics import percentile

THRESHOLD = 0.05
"""The default fraction by which p50 may differ."""
FIGURE = "p50"
_SERIAL_DEGREES = 9
"""The degrees of freedom of the interval of one process, which is made of 10 stretches."""
_ONE_SIDED = 0.025

Key: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRow:
    """A row of both sides.

    Attributes:
        row: The row, of the first process of A; of B where A has none.
        ratio: p50 of B over that of A, with its own 95 % interval; None if a side has no times. Its
            verdict allows for all rows of the comparison.
        processes: The processes with times of A and of B.
        reason: Why there is no ratio, or no interval; empty if there is one.
    """

    row: OperatorRow
    ratio: Ratio | None
    processes: tuple[int, int]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Estimate:
    """A side's logarithm of p50, its standard error, and the degrees of freedom of that."""

    log_ns: float
    error: float
    degrees: float


def compare_operators(
    a: Sequence[OperatorMeasurement],
    b: Sequence[OperatorMeasurement],
    *,
    threshold: float = THRESHOLD,
    same_form: bool = True,
) -> tuple[ComparedRow, ...]:
    """Compares the rows of B with those of A, paired by key and form.

    Where both sides have a row from several processes, or evaluations, its error is that between them. Else
    it is that of times in a row, which does not show how processes differ. The difference of the logarithms
    is judged by Welch's t test ("The Generalization of 'Student's' Problem when Several Different Population
    Variances are Involved", Biometrika 34, 1947). A row is better or worse where p50 differs by more than the
    threshold at 2.5 % on that side, adjusted for the number of rows by Holm ("A Simple Sequentially Rejective
    Multiple Test Procedure", Scandinavian Journal of Statistics 6, 1979). It is the same where its 95 %
    interval is within the threshold.

    Args:
        a: The baseline; several evaluations count as several processes.
        b: The judged side.
        threshold: The share by which p50 may differ.
        same_form: Whether rows of different forms are different rows; False to compare frameworks, with the
            first form of each.
    """
    of_a, of_b = (_grouped(each, same_form) for each in (a, b))
    pairs = [_pair(of_a.get(key, []), of_b.get(key, []), threshold) for key in dict.fromkeys([*of_a, *of_b])]
    found = dict(_decided([share for _, share in pairs]))
    return tuple(
        replace(row, ratio=replace(row.ratio, verdict=found[place])) if row.ratio and place in found else row
        for place, (row, _) in enumerate(pairs)
    )


def _grouped(measurements: Iterable[OperatorMeasurement], same_form: bool) -> dict[Key, list[OperatorRow]]:
    found: dict[Key, list[OperatorRow]] = {}
    for measurement in measurements:
        for row in measurement.rows:
            rows = found.setdefault((*row.key, row.form) if same_form else row.key, [])
            if not rows or rows[0].form == row.form:
                rows.append(row)
    return found


def _pair(
    a: Sequence[OperatorRow], b: Sequence[OperatorRow], threshold: float
) -> tuple[ComparedRow, tuple[float, Verdict]]:
    """Returns the row, and how probable what was seen is if it does not differ, with what it is otherwise."""
    measured = [
        [row for row in side if row.status is RowStatus.MEASURED and len(row.times_ns)] for side in (a, b)
    ]
    processes = len(measured[0]), len(measured[1])
    row, undecided = (*a, *b)[0], (1.0, Verdict.UNDECIDED)
    for name, side, times in zip("AB", (a, b), measured, strict=True):
        if not times:
            reason = (
                f"{name}: {side[0].status.value}: {side[0].reason}" if side else f"{name} has no such row"
            )
            return ComparedRow(row, None, processes, reason), undecided
    p50s = _p50_ns(measured[0]), _p50_ns(measured[1])
    value = p50s[1] / p50s[0]
    estimates = [_estimate(side, between=min(processes) > 1) for side in measured]
    if estimates[0] is None or estimates[1] is None:
        ratio = Ratio(FIGURE, *p50s, value, None, None, threshold, Verdict.UNDECIDED)
        return ComparedRow(row, ratio, processes, "too few times for an interval"), undecided
    difference, error, degrees = _difference(estimates[0], estimates[1])
    reach = t_quantile_95(max(1, math.floor(degrees))) * error
    low, high = math.exp(difference - reach), math.exp(difference + reach)
    same = 1 / (1 + threshold) <= low and high <= 1 + threshold
    verdict = Verdict.SAME if same else Verdict.UNDECIDED
    ratio = Ratio(FIGURE, *p50s, math.exp(difference), low, high, threshold, verdict)
    beyond = abs(difference) - math.log1p(threshold)
    direction = Verdict.WORSE if difference > 0 else Verdict.BETTER
    share = student_tail(beyond / error, degrees) if error else float(beyond <= 0)
    return ComparedRow(row, ratio, processes), (share, direction)


def _decided(found: Sequence[tuple[float, Verdict]]) -> Iterable[tuple[int, Verdict]]:
    """Yields the places of rows that are better or worse, by Holm's procedure over both directions."""
    order = sorted(range(len(found)), key=lambda place: found[place][0])
    left = sum(verdict is not Verdict.UNDECIDED for _, verdict in found)
    for place in order:
        share, verdict = found[place]
        if left < 1 or share > _ONE_SIDED / left:
            return
        yield place, verdict
        left -= 1


def _p50_ns(rows: Sequence[OperatorRow]) -> float:
    return float(np.mean([percentile(run_times(row), 50) for row in rows]))


def _estimate(rows: Sequence[OperatorRow], *, between: bool) -> _Estimate | None:
    """Returns the estimate from differences between processes, or from the times within them."""
    logs = np.log([max(percentile(run_times(row), 50), 1e-9) for row in rows])
    if between:
        error = float(logs.std(ddof=1)) / math.sqrt(len(rows))
        return _Estimate(float(logs.mean()), error, len(rows) - 1)
    errors = []
    for row, log_ns in zip(rows, logs, strict=True):
        interval = p50_interval([row])
        if interval is None or interval.low <= 0:
            return None
        reach = max(math.log(interval.high) - log_ns, log_ns - math.log(interval.low), 0.0)
        errors.append(reach / t_quantile_95(_SERIAL_DEGREES))
    error = math.sqrt(sum(each**2 for each in errors)) / len(errors)
    return _Estimate(float(logs.mean()), error, _SERIAL_DEGREES)


def _difference(a: _Estimate, b: _Estimate) -> tuple[float, float, float]:
    """Returns B minus A, the standard error, and Welch's degrees of freedom."""
    variances = a.error**2, b.error**2
    whole = sum(variances)
    parts = variances[0] ** 2 / a.degrees + variances[1] ** 2 / b.degrees
    return b.log_ns - a.log_ns, math.sqrt(whole), whole**2 / parts if parts else a.degrees + b.degrees
