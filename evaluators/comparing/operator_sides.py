"""Comparison of two benchmarks of operators, of one or several frameworks: rows, notes and the conclusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from inferometer.evaluators.comparing.operators import FIGURE, ComparedRow, compare_operators
from inferometer.evaluators.comparing.sides import DIFFERS, Side
from inferometer.evaluators.comparing.verdict import Verdict, listed
from inferometer.evaluators.evaluation import Evaluation, of_kind
from inferometer.evaluators.jobs.compare import Comparison, ComparisonRequest, conditions_warnings
from inferometer.evaluators.jobs.defaults import THRESHOLD
from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement, OperatorRow, RowStatus
from inferometer.evaluators.kinds.operators.report import parameters_text, shapes_text
from inferometer.evaluators.reports.base import Column, Row
from inferometer.manifests.errors import ConfigurationError

OPERATOR_COLUMNS = (
    Column("operator", "operator", stays=True),
    Column("framework", "framework"),
    Column("form", "form", detail=1),
    Column("mode", "mode", detail=1),
    Column("inputs", "inputs", wraps=True),
    Column("parameters", "parameters", detail=1, wraps=True),
    Column("figure", "figure", detail=2),
    Column("unit", "unit", detail=1),
    Column("a", "A"),
    Column("b", "B"),
    Column("ratio", "B / A", decimals=4),
    Column("ratio_low", "low", decimals=4),
    Column("ratio_high", "high", decimals=4),
    Column("threshold", "threshold", decimals=4, detail=1),
    Column("verdict", "verdict", stays=True),
    Column("reason", "reason", wraps=True),
)
"""``a`` and ``b`` are p50 in the row's ``unit``; ``ratio_low`` and ``ratio_high`` are its 95 % interval."""
_NS_PER_US = 1000
_NAMED = 5
_SEPARATOR = "\t"  # between a framework and a form, of which neither has one


@dataclass(frozen=True, slots=True)
class OperatorComparison:
    """Two benchmarks of operators compared.

    Attributes:
        rows: A row of ``OPERATOR_COLUMNS`` for each row that one of the sides has.
        notes: What qualifies the rows, one line each.
        undecided: Which rows are undecided, in at most one line.
        conclusion: What follows from all rows together, in one line.
        worse: Whether B is worse in a row, or does not run what A runs.
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    undecided: tuple[str, ...]
    conclusion: str
    worse: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    """A row with its verdict, and where it ran; no verdict on what is not compared."""

    compared: ComparedRow
    verdict: Verdict | None
    framework: str
    form: str

    @property
    def name(self) -> str:
        """A short name of the row."""
        row = self.compared.row
        mode = "" if row.mode.value == "forward" else f" {row.mode.value}"
        return f"{row.operator}{mode} ({shapes_text(row.shapes)}) in {self.framework}"


def compare_operator_sides(a: Side, b: Side, threshold: float) -> OperatorComparison:
    """Compares the rows of B with those of A, each with that of its own framework.

    Two sides of one framework each, which are not the same, are compared with each other.

    Args:
        a: The baseline.
        b: The judged side.
        threshold: The share by which p50 may differ.

    Raises:
        ConfigurationError: The sides have no framework and no row in common, or one is no benchmark of
            operators.
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
            f"A has {listed(frameworks[0])} and B {listed(frameworks[1])}; compare what have a framework in "
            "common, or an evaluation of one framework with one of another"
        )
    if all(each.verdict is None for each in judged):
        raise ConfigurationError(
            "A and B have no row of the same operator, sizes, form and mode that was measured; measure both "
            "with the same options of agent op run"
        )
    return OperatorComparison(
        rows=tuple(_row(each, threshold) for each in judged),
        notes=tuple(_notes(a, b, common)),
        undecided=tuple(_undecided(judged, threshold)),
        conclusion=_conclusion(judged),
        worse=any(each.verdict is Verdict.WORSE for each in judged),
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
    judged = []
    for compared in compare_operators(*sides, threshold=threshold):
        framework, _, form = compared.row.form.partition(_SEPARATOR)
        judged.append(_Judged(compared, _verdict(compared, sides), framework, form))
    return judged


def _in_framework(name: str, measurement: OperatorMeasurement) -> OperatorMeasurement:
    """Returns the measurement with its framework in the forms of its rows, by which they are paired."""
    rows = tuple(replace(row, form=f"{name}{_SEPARATOR}{row.form}") for row in measurement.rows)
    return replace(measurement, rows=rows)


def _across(a: Side, b: Side, frameworks: str, threshold: float) -> list[_Judged]:
    """Compares one framework with another, each in its first form."""
    sides = [[found for _, found in _measurements(side)] for side in (a, b)]
    return [
        _Judged(each, _verdict(each, sides, same_form=False), frameworks, "")
        for each in compare_operators(*sides, threshold=threshold, same_form=False)
    ]


def _verdict(
    compared: ComparedRow, sides: Sequence[Sequence[OperatorMeasurement]], *, same_form: bool = True
) -> Verdict | None:
    """Returns the verdict on a row.

    A row that only one side has times of is worse or better if the other side was asked to measure it.
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


def _row(judged: _Judged, threshold: float) -> Row:
    compared = judged.compared
    row, ratio = compared.row, compared.ratio
    return {
        "operator": row.operator,
        "framework": judged.framework,
        "form": judged.form,
        "mode": row.mode.value,
        "inputs": shapes_text(row.shapes),
        "parameters": parameters_text(row.parameters),
        "figure": FIGURE,
        "unit": "us",
        "a": None if ratio is None else ratio.a / _NS_PER_US,
        "b": None if ratio is None else ratio.b / _NS_PER_US,
        "ratio": None if ratio is None else ratio.value,
        "ratio_low": None if ratio is None else ratio.low,
        "ratio_high": None if ratio is None else ratio.high,
        "threshold": threshold,
        "verdict": None if judged.verdict is None else judged.verdict.value,
        "reason": compared.reason or None,
    }


def _conclusion(judged: Sequence[_Judged]) -> str:
    counts: Mapping[Verdict | None, int] = Counter(each.verdict for each in judged)
    worse = [each for each in judged if each.verdict is Verdict.WORSE]
    if worse:
        told = "; ".join(map(_difference, worse[:_NAMED]))
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


def _difference(judged: _Judged) -> str:
    ratio = judged.compared.ratio
    if ratio is None:
        return f"{judged.name}: {judged.compared.reason}"
    interval = "" if ratio.low is None or ratio.high is None else f" [{ratio.low:.4g}, {ratio.high:.4g}]"
    return f"{judged.name} is {ratio.value:.4g} times A's{interval}"


def _undecided(judged: Sequence[_Judged], threshold: float) -> Iterator[str]:
    """Yields the rows that are undecided, in one line."""
    found = [each for each in judged if each.verdict is Verdict.UNDECIDED]
    if found:
        names = "; ".join(each.name for each in found[:_NAMED])
        more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        yield (
            f"{_rows(len(found))} may differ by more or by less than {100 * threshold:.3g} %: {names}{more}; "
            "give more processes or a longer --time_budget"
        )


def _notes(a: Side, b: Side, common: Sequence[str]) -> Iterator[str]:
    """Yields what qualifies the rows: frameworks of one side, what differs, and single processes."""
    for side, other in ((a, b), (b, a)):
        alone = [name for name in _frameworks(side) if name not in _frameworks(other)]
        if common and alone:
            yield f"left out {listed(alone)} of {side.name}, which {other.name} has not"
    yield from dict.fromkeys(f"{DIFFERS}{difference}" for difference in _differences(a, b, common))
    single = [side.name for side in (a, b) if _processes(side) == 1]
    if single:
        which = f"{' and '.join(single)} {'are one process each' if len(single) > 1 else 'is one process'}"
        yield (
            f"warning: {which}, which cannot tell how much the next one would differ; "
            "give 4 or more a side (op run --processes=4)"
        )


def _differences(a: Side, b: Side, common: Sequence[str]) -> Iterator[str]:
    if not common:
        yield from a.differences(b)
    for name in common:
        one, other = (_of_framework(side, name) for side in (a, b))
        yield from one.differences(other)


def _of_framework(side: Side, name: str) -> Side:
    return Side(side.name, tuple(each for each in side.evaluations if _framework(each) == name))


def _processes(side: Side) -> int:
    """Returns the smallest number of processes that measured a row of the side."""
    counts: dict[tuple[str, ...], int] = {}
    for framework, measurement in _measurements(side):
        for row in measurement.rows:
            if row.status is RowStatus.MEASURED:
                key = (framework, *_whole_key(row))
                counts[key] = counts.get(key, 0) + 1
    return min(counts.values(), default=0)


def _whole_key(row: OperatorRow) -> tuple[str, ...]:
    return (*row.key, row.form)


def compare_operators_of(request: ComparisonRequest) -> Comparison:
    """Compares the rows of two benchmarks of operators; see ``jobs.compare.compare``."""
    a, b = request.a, request.b
    if request.noise is not None:
        raise ConfigurationError(
            "--noise is not for operators: their rows are compared over processes; measure both sides with "
            "op run --processes=4, and leave out --noise"
        )
    if request.figures not in (None, (FIGURE,)):
        raise ConfigurationError(f"operators are compared in {FIGURE} alone; leave out --figures")
    found = compare_operator_sides(a, b, THRESHOLD if request.threshold is None else request.threshold)
    default = f"threshold {100 * THRESHOLD:g} %, the default; --threshold gives another"
    warnings = (f"warning: {line}" for side in (a, b) for line in conditions_warnings(side))
    return Comparison(
        rows=found.rows,
        notes=(*((default,) if request.threshold is None else ()), *found.notes, *warnings),
        undecided=found.undecided,
        conclusion=found.conclusion,
        worse=found.worse,
        columns=OPERATOR_COLUMNS,
    )
