"""Comparison of two benchmarks of operators in one or several frameworks: rows, notes and the conclusion.

Rows of two sides are compared by the ratio of their p50, with verdicts that allow for the number of rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from inferometer.evaluators.comparing.comparison import DIFFERS, Side
from inferometer.evaluators.comparing.job import (
    Comparison,
    ComparisonRequest,
    conditions_warnings,
    difference_text,
    single_processes,
)
from inferometer.evaluators.evaluation import Evaluation, of_kind
from inferometer.evaluators.jobs.options import THRESHOLD
from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement, OperatorRow, RowStatus
from inferometer.evaluators.kinds.operators.report import p50_interval, run_times
from inferometer.evaluators.reports.base import Column, known, row_of, us
from inferometer.evaluators.statistics import percentile, student_tail, t_quantile_95
from inferometer.evaluators.verdict import Ratio, Verdict, listed
from inferometer.manifests.errors import ConfigurationError

FIGURE = "p50"
_SERIAL_DEGREES = 9
"""The degrees of freedom of the interval of a single process, whose times are divided into 10 stretches."""
_ONE_SIDED = 0.025

Key: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRow:
    """A row of both sides.

    Attributes:
        row: The row of the first process of A, or of B if A has none.
        ratio: p50 of B divided by p50 of A, with its own 95 % interval; None if a side has no times. Its
            verdict allows for all rows of the comparison.
        processes: The numbers of processes with times, for A and for B.
        reason: The reason why there is no ratio or no interval; empty if there are both.
    """

    row: OperatorRow
    ratio: Ratio | None
    processes: tuple[int, int]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Estimate:
    """The logarithm of a side's p50, its standard error, and the degrees of freedom of that error."""

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

    If both sides have a row from several processes or evaluations, its error is the variation between them.
    Otherwise, it is the variation of consecutive times, which does not show how processes differ. The
    difference of the logarithms is judged by Welch's t test ("The Generalization of 'Student's' Problem when
    Several Different Population Variances are Involved", Biometrika 34, 1947). A row is better or worse if
    p50 differs by more than the threshold at the 2.5 % level on that side, adjusted for the number of rows by
    Holm ("A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of Statistics 6,
    1979). It is the same if its 95 % interval is within the threshold.

    Args:
        a: The baseline; several evaluations count as several processes.
        b: The judged side.
        threshold: The fraction by which p50 may differ.
        same_form: Whether rows of different forms are different rows; False compares frameworks by the first
            form of each row.
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
    """Returns the row, the p-value of a difference beyond the threshold, and the verdict if significant."""
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
    """Yields index and verdict of each better or worse row, by Holm's procedure over both directions."""
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
    """Returns the estimate from the differences between processes, or from the times within one process."""
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
    """Returns the difference B minus A, its standard error, and Welch's degrees of freedom."""
    variances = a.error**2, b.error**2
    whole = sum(variances)
    parts = variances[0] ** 2 / a.degrees + variances[1] ** 2 / b.degrees
    return b.log_ns - a.log_ns, math.sqrt(whole), whole**2 / parts if parts else a.degrees + b.degrees


_NAMED = 5
_SEPARATOR = "\t"  # between a framework and a form, of which neither has one


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    """A row with its verdict, framework and form; the verdict is None for a row that is not compared."""

    compared: ComparedRow
    verdict: Verdict | None
    framework: str
    form: str

    @property
    def name(self) -> str:
        """A short name of the row."""
        row = self.compared.row
        mode = "" if row.mode.value == "forward" else f" {row.mode.value}"
        return f"{row.operator}{mode} ({row.inputs_text}) in {self.framework}"


OPERATOR_COLUMNS: tuple[Column[_Judged], ...] = (
    Column("operator", "operator", stays=True, value="compared.row.operator"),
    Column("framework", "framework", value="framework"),
    Column("form", "form", detail=1, value="form"),
    Column("mode", "mode", detail=1, value="compared.row.mode.value"),
    Column("inputs", "inputs", wraps=True, value="compared.row.inputs_text"),
    Column("parameters", "parameters", detail=1, wraps=True, value="compared.row.parameters_text"),
    Column("figure", "figure", detail=2, value=lambda _: FIGURE),
    Column("unit", "unit", detail=1, value=lambda _: "us"),
    Column("a", "A", value=us("compared.ratio.a")),
    Column("b", "B", value=us("compared.ratio.b")),
    Column("ratio", "B / A", decimals=4, value="compared.ratio.value"),
    Column("ratio_low", "low", decimals=4, value="compared.ratio.low"),
    Column("ratio_high", "high", decimals=4, value="compared.ratio.high"),
    Column("threshold", "threshold", decimals=4, detail=1),
    Column("verdict", "verdict", stays=True, value="verdict.value"),
    Column("reason", "reason", wraps=True, value=known("compared.reason")),
)
"""``a`` and ``b`` are p50 in ``unit``; ``ratio_low`` to ``ratio_high`` is the 95 % interval of the ratio."""


def _compare_sides(a: Side, b: Side, threshold: float) -> Comparison:
    """Compares the rows of B with those of A in the same framework.

    If each side has only one framework, and these differ, they are compared with each other.
    """
    a.check_comparable(b)
    frameworks = _frameworks(a), _frameworks(b)
    common = [name for name in frameworks[0] if name in frameworks[1]]
    if common:
        judged = _within(a, b, common, threshold)
    elif len(frameworks[0]) == len(frameworks[1]) == 1:
        judged = _across(a, b, f"{frameworks[1][0]} / {frameworks[0][0]}", threshold)
    else:
        raise ConfigurationError(
            f"A has {listed(frameworks[0])} and B {listed(frameworks[1])}; compare evaluations that have a "
            "framework in common, or one of a single framework with one of another"
        )
    if all(each.verdict is None for each in judged):
        raise ConfigurationError(
            "A and B have no measured row of the same operator, sizes, form and mode; measure both "
            "with the same options of agent op run"
        )
    return Comparison(
        rows=tuple({**row_of(OPERATOR_COLUMNS, each), "threshold": threshold} for each in judged),
        notes=tuple(_notes(a, b, common)),
        undecided=tuple(_undecided(judged, threshold)),
        conclusion=_conclusion(judged),
        worse=any(each.verdict is Verdict.WORSE for each in judged),
        columns=OPERATOR_COLUMNS,
    )


def _frameworks(side: Side) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_framework, side.evaluations)))


def _framework(evaluation: Evaluation) -> str:
    return evaluation.system.manifest.framework.name


def _measurements(side: Side) -> list[tuple[str, OperatorMeasurement]]:
    return [(_framework(each), each.measurement) for each in of_kind(side.evaluations, OperatorMeasurement)]


def _within(a: Side, b: Side, common: Sequence[str], threshold: float) -> list[_Judged]:
    """Compares all frameworks at once, so that the verdicts allow for all rows."""
    sides = [
        [_in_framework(name, found) for name, found in _measurements(side) if name in common]
        for side in (a, b)
    ]
    return [
        _Judged(each, _verdict(each, sides), *each.row.form.split(_SEPARATOR))
        for each in compare_operators(*sides, threshold=threshold)
    ]


def _in_framework(name: str, measurement: OperatorMeasurement) -> OperatorMeasurement:
    """Returns the measurement with its framework added to the forms of its rows, by which rows are paired."""
    rows = tuple(replace(row, form=f"{name}{_SEPARATOR}{row.form}") for row in measurement.rows)
    return replace(measurement, rows=rows)


def _across(a: Side, b: Side, frameworks: str, threshold: float) -> list[_Judged]:
    """Compares one framework with another, by the first form of each row."""
    sides = [[found for _, found in _measurements(side)] for side in (a, b)]
    return [
        _Judged(each, _verdict(each, sides, same_form=False), frameworks, "")
        for each in compare_operators(*sides, threshold=threshold, same_form=False)
    ]


def _verdict(
    compared: ComparedRow, sides: Sequence[Sequence[OperatorMeasurement]], *, same_form: bool = True
) -> Verdict | None:
    """Returns the verdict on a row.

    A row with times on only one side is worse or better if the other side was asked to measure it.
    """
    if compared.ratio is not None:
        return compared.ratio.verdict
    if not any(compared.processes):
        return None
    side, verdict = (sides[1], Verdict.WORSE) if compared.processes[0] else (sides[0], Verdict.BETTER)
    asked = any(
        row.key == compared.row.key and (row.form == compared.row.form or not same_form)
        for measurement in side
        for row in measurement.rows
    )
    return verdict if asked else None


def _conclusion(judged: Sequence[_Judged]) -> str:
    counts: Mapping[Verdict | None, int] = Counter(each.verdict for each in judged)
    worse = [each for each in judged if each.verdict is Verdict.WORSE]
    if worse:
        told = "; ".join(
            difference_text(each.name, ratio)
            if (ratio := each.compared.ratio)
            else f"{each.name}: {each.compared.reason}"
            for each in worse[:_NAMED]
        )
        more = f"; and {len(worse) - _NAMED} more" if len(worse) > _NAMED else ""
        parts = [f"REGRESSION: B is worse than A in {len(worse)} of {_rows(len(judged))}: {told}{more}"]
    else:
        shown = "no regression was shown" if counts[Verdict.UNDECIDED] else "no regression"
        parts = [f"{shown} in {_rows(len(judged))}"]
    named = ((Verdict.BETTER, "better"), (Verdict.SAME, "the same"), (Verdict.UNDECIDED, "undecided"))
    parts += [f"{counts[verdict]} {words}" for verdict, words in named if counts[verdict]]
    if counts[None]:
        parts.append(f"{counts[None]} not compared")
    return "; ".join(parts)


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"


def _undecided(judged: Sequence[_Judged], threshold: float) -> Iterator[str]:
    """Yields the undecided rows as one line."""
    found = [each for each in judged if each.verdict is Verdict.UNDECIDED]
    if found:
        names = "; ".join(each.name for each in found[:_NAMED])
        more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        yield (
            f"{_rows(len(found))} may differ by more or by less than {100 * threshold:.3g} %: {names}{more}; "
            "give more processes or a longer --time_budget"
        )


def _notes(a: Side, b: Side, common: Sequence[str]) -> Iterator[str]:
    """Yields notes on the rows: frameworks that only one side has, the differences, and single processes."""
    for side, other in ((a, b), (b, a)):
        alone = [name for name in _frameworks(side) if name not in _frameworks(other)]
        if common and alone:
            yield f"left out {listed(alone)} of {side.name}, which {other.name} does not have"
    pairs = [[_of_framework(side, name) for side in (a, b)] for name in common] or [[a, b]]
    differences = (difference for one, other in pairs for difference in one.differences(other))
    yield from dict.fromkeys(f"{DIFFERS}{difference}" for difference in differences)
    yield from single_processes(
        [side.name for side in (a, b) if _processes(side) == 1], "(op run --processes=4)"
    )


def _of_framework(side: Side, name: str) -> Side:
    return Side(side.name, tuple(each for each in side.evaluations if _framework(each) == name))


def _processes(side: Side) -> int:
    """Returns the smallest number of processes that measured any row of the side."""
    counts = Counter(
        (framework, *row.key, row.form)
        for framework, measurement in _measurements(side)
        for row in measurement.rows
        if row.status is RowStatus.MEASURED
    )
    return min(counts.values(), default=0)


def compare_operators_of(request: ComparisonRequest) -> Comparison:
    """Compares the rows of two benchmarks of operators; see ``comparing.job.compare``."""
    a, b = request.a, request.b
    if request.noise is not None:
        raise ConfigurationError(
            "--noise is not for operators: their rows are compared over processes; measure both sides with "
            "op run --processes=4, and leave out --noise"
        )
    if request.figures not in (None, (FIGURE,)):
        raise ConfigurationError(f"operators are compared only in {FIGURE}; leave out --figures")
    found = _compare_sides(a, b, THRESHOLD if request.threshold is None else request.threshold)
    default = f"threshold {100 * THRESHOLD:g} %, the default; --threshold gives another"
    warnings = (f"warning: {line}" for side in (a, b) for line in conditions_warnings(side))
    return replace(found, notes=(*((default,) if request.threshold is None else ()), *found.notes, *warnings))
