"""The measurement kind for single operators, with its documents, its plot, and the command that repeats it.

There is one document for each row, with its raw times. The journal of a benchmark in progress holds its rows
in the same form. The plot shows the roofline of the machine and the frameworks side by side.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeAlias

from inferometer.agent.files import LineJournal
from inferometer.agent.operators.operator import ParameterValue, Preset, Shape, operators, parameter_text
from inferometer.evaluators.documents import (
    Document,
    Documents,
    Part,
    Stored,
    checked,
    fields_of,
    joined,
    record,
    restored,
    storable,
)
from inferometer.evaluators.drawing.charts import (
    Bar,
    BarChart,
    BarRow,
    Chosen,
    Drawing,
    Label,
    Plot,
    PointChart,
    Series,
    number,
    plural,
    readable,
    time_unit,
)
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.options import further, words
from inferometer.evaluators.kinds.kind import Again, Kind, Rows, allocator_words, drawn
from inferometer.evaluators.kinds.operators.measurement import (
    Correctness,
    MachinePeak,
    OperatorMeasurement,
    OperatorRow,
    RowStatus,
    Stop,
)
from inferometer.evaluators.kinds.operators.options import Mode, OperatorOptions
from inferometer.evaluators.kinds.operators.report import OperatorsReport, operator_lines
from inferometer.evaluators.reports.base import Row

_OWN = "own"
_APART = {"shapes", "parameters", "times_ns", "correctness"}
_KNOWN = ("dtype", "cache", "seed", "values", "target_percent", "budget_s", "runs", "warmup", "processes")
"""The options that the conditions of a comparison state in words, or that may differ between its sides."""
_PLAIN_FIELDS = tuple(field.name for field in fields(OperatorRow) if field.name not in _APART)


def row_document(row: OperatorRow) -> Document:
    """Returns a row in the form used in databases and JSON."""
    return {
        **{name: storable(getattr(row, name)) for name in _PLAIN_FIELDS},
        "shapes": [{"input": storable(name), "shape": list(shape)} for name, shape in row.shapes.items()],
        "parameters": storable(row.parameters),
        "correctness": fields_of(row.correctness),
        "times_ns": row.times_ns.tolist(),
    }


def row_from_document(document: Stored) -> OperatorRow:
    """Returns the row from a document of ``row_document``.

    Raises:
        KeyError, TypeError, ValueError: The document is damaged.
    """
    plain = {name: restored(document[name]) for name in _PLAIN_FIELDS}
    return checked(
        OperatorRow(
            **plain
            | {
                "mode": Mode(plain["mode"]),
                "status": RowStatus(plain["status"]),
                "stop": None if plain["stop"] is None else Stop(plain["stop"]),
                "shapes": {restored(each["input"]): _shape(each["shape"]) for each in document["shapes"]},
                "parameters": {k: _parameter(v) for k, v in restored(document["parameters"]).items()},
                "correctness": record(Correctness, document["correctness"]),
                "times_ns": joined([document["times_ns"]]),
            }
        )
    )


def _shape(sizes: Sequence[int]) -> Shape:
    return tuple(int(size) for size in sizes)


def _parameter(value: ParameterValue | list[int]) -> ParameterValue:
    return _shape(value) if isinstance(value, list) else value


def _words_again(evaluation: Evaluation[OperatorMeasurement]) -> Iterator[str]:
    """Yields the operators and the options; several custom sizes are left out."""
    measured, system = evaluation.measurement, evaluation.system
    rows = measured.rows
    yield from dict.fromkeys(row.operator for row in rows)
    yield f"--framework_name={system.manifest.framework.name}"
    yield from _sizes(rows)
    modes = tuple(dict.fromkeys(row.mode for row in rows))
    if modes != (Mode.FORWARD,):
        yield from (f"--mode={mode.value}" for mode in modes)
    yield from (f"--form={form}" for form in dict.fromkeys(row.form for row in rows if row.form))
    if system.device.is_gpu:
        yield "--gpu"
    elif system.threads:
        yield f"--threads={system.threads}"
    yield from allocator_words(system)
    options = measured.options
    yield from words(asdict(options) | {"target_percent": options.target_percent or 0}, OperatorOptions)


def _sizes(rows: tuple[OperatorRow, ...]) -> Iterator[str]:
    if row := _own_case(rows):
        given = operators()[row.operator].given
        yield from (f"--input={name}={parameter_text(row.shapes[name])}" for name in given)
        yield from (f"--param={name}={parameter_text(value)}" for name, value in row.parameters.items())
        return
    known = [each.value for each in Preset]
    presets = dict.fromkeys(row.preset for row in rows if row.preset in known)
    if presets:
        yield f"--shapes={','.join(presets)}"


def _own_case(rows: tuple[OperatorRow, ...]) -> OperatorRow | None:
    """Returns the row of the only case if its sizes are a user's own; otherwise None."""
    cases = {row.key[:3] for row in rows}
    return rows[0] if len(cases) == 1 and rows[0].preset == _OWN and rows[0].operator in operators() else None


_MOST_ROWS = 30
"""The number of rows of bars that fit in one picture with the roofline."""
_MOST_POINTS = 60
_ROOF = "roof of this machine"
_CASE = ("operator", "inputs", "parameters", "mode")
_WHERE = ("dtype", "cache", "device", "threads", "hostname")
_FAR = 10.0  # a ratio beyond which bars are logarithmic
_DETAIL_CHARACTERS = 60
_GIGA = 1e9
_CORNER = 0.1  # how small the points at the ends of a roof are


class OperatorsPlot(Plot[OperatorMeasurement]):
    """Two charts: each row under the roofs of the machine, and p50 relative to the fastest framework.

    The roofline is drawn if the machine's peak was measured; the bars are relative if several frameworks or
    forms measured a case, and otherwise p50. If a case was measured repeatedly, the newest is shown.

    Args:
        most_points: The number of roofline points above which the points of a framework share a tooltip.
    """

    def __init__(self, most_points: int = _MOST_POINTS) -> None:
        self._most_points = most_points

    def shows(self, row: Row) -> bool:
        return row["p50_us"] is not None

    def drawing(self, chosen: Chosen[OperatorMeasurement], notes: Sequence[str]) -> Drawing:
        every = [row for _, rows in chosen for row in rows]
        series_of = _series_names(every)
        newest: dict[tuple[str, ...], Row] = {}
        for row in every:
            newest.setdefault((*_key(row), series_of[id(row)]), row)
        rows = list(newest.values())
        groups = tuple(dict.fromkeys(series_of[id(row)] for row in rows))
        peaks = dict.fromkeys(e.measurement.peak for e, _ in chosen if e.measurement.peak is not None)
        roofline = self._roofline(list(peaks), rows, series_of)
        bars, told = _side_by_side(rows, series_of)
        return Drawing(
            title="Single operators",
            charts=(*((roofline,) if roofline else ()), bars),
            groups=(*groups, *((_ROOF,) if roofline else ())),
            notes=(*told, *notes),
        )

    def _roofline(
        self, peaks: Sequence[MachinePeak], rows: Sequence[Row], series_of: Mapping[int, str]
    ) -> PointChart | None:
        """Returns the roofs and a point for each row with known operations and bytes, or None."""
        placed = [row for row in rows if number(row["intensity"]) > 0 and number(row["gflops_per_s"]) > 0]
        if not peaks or not placed:
            return None
        intensities = [number(row["intensity"]) for row in placed]
        ridges = [peak.flops_per_s / peak.bytes_per_s for peak in peaks]
        low, high = min(*intensities, *ridges) / 2, max(*intensities, *ridges) * 2
        return PointChart(
            Label("Roofline", " · ".join(map(_peak_text, peaks))),
            "arithmetic intensity (FLOP/byte)",
            "GFLOP/s at p50",
            (*(_roof(peak, low, high) for peak in peaks), *_points(placed, series_of, self._most_points)),
            x_logarithmic=True,
            y_logarithmic=True,
            tall=True,
        )


def _series_names(rows: Sequence[Row]) -> Mapping[int, str]:
    """Returns the legend name of each row by its ``id``: the framework, with its form if it has several."""
    forms: dict[str, set[str]] = {}
    for row in rows:
        forms.setdefault(str(row["framework_name"]), set()).add(str(row["form"]))
    names = {}
    for row in rows:
        framework = str(row["framework_name"])
        names[id(row)] = framework if len(forms[framework]) == 1 else f"{framework} {row['form']}"
    return names


def _key(row: Row) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in (*_CASE, *_WHERE))


def _peak_text(peak: MachinePeak) -> str:
    flops, transfer = readable(peak.flops_per_s / _GIGA), readable(peak.bytes_per_s / _GIGA)
    return f"{plural(peak.threads, 'thread')}: {flops} GFLOP/s, {transfer} GB/s"


def _roof(peak: MachinePeak, low: float, high: float) -> Series:
    ridge = peak.flops_per_s / peak.bytes_per_s
    x = (low, ridge, high)
    y = tuple(min(peak.flops_per_s, at * peak.bytes_per_s) / _GIGA for at in x)
    return Series(_ROOF, x, y, line=True, tooltip=f"roof: {_peak_text(peak)}", size=_CORNER, strong=True)


def _points(rows: Sequence[Row], series_of: Mapping[int, str], most: int) -> Iterator[Series]:
    """Yields a series per row, with a tooltip that names it; if there are many rows, one per legend name."""
    if len(rows) <= most:
        for row in rows:
            yield _point_series(series_of[id(row)], [row], _named(row))
        return
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(series_of[id(row)], []).append(row)
    for name, of_one in groups.items():
        yield _point_series(name, of_one, plural(len(of_one), "row"))


def _point_series(name: str, rows: Sequence[Row], what: str) -> Series:
    x = tuple(number(row["intensity"]) for row in rows)
    y = tuple(number(row["gflops_per_s"]) for row in rows)
    rate = f", {readable(y[0])} GFLOP/s" if len(y) == 1 else ""
    return Series(name, x, y, tooltip=f"{name}: {what}{rate}", size=5)


def _named(row: Row) -> str:
    sizes = " ".join(filter(None, (str(row["inputs"]), str(row["parameters"] or ""))))
    return f"{row['operator']} {str(row['mode']).replace('_', ' + ')}, {sizes}"


def _side_by_side(rows: Sequence[Row], series_of: Mapping[int, str]) -> tuple[BarChart, tuple[str, ...]]:
    """Returns the bars, and notes about omitted rows."""
    cases: dict[tuple[str, ...], list[Row]] = {}
    order = list(dict.fromkeys(series_of[id(row)] for row in rows))
    for row in sorted(rows, key=lambda row: order.index(series_of[id(row)])):
        cases.setdefault(_key(row), []).append(row)
    compared = [of_one for of_one in cases.values() if len(of_one) > 1]
    if not compared:
        return _times(list(cases.values()), series_of)
    compared.sort(key=_slowest, reverse=True)
    shown = compared[:_MOST_ROWS]
    lines = tuple(
        _bars(of_one, series_of, {id(row): _relative(row, of_one) for row in of_one}) for of_one in shown
    )
    heading = Label("Frameworks side by side", "p50 relative to the fastest; the greatest difference first")
    far = _slowest(shown[0]) > _FAR
    chart = BarChart(heading, "p50 over the fastest framework's", lines, logarithmic=far)
    return chart, _hidden(len(shown), len(compared), "that differ most")


def _times(cases: Sequence[Sequence[Row]], series_of: Mapping[int, str]) -> tuple[BarChart, tuple[str, ...]]:
    """Returns bars of the times themselves, if no case was measured twice."""
    ordered = sorted(cases, key=lambda of_one: number(of_one[0]["p50_us"]), reverse=True)
    shown = ordered[:_MOST_ROWS]
    scale, unit = time_unit(max(number(row["p50_us"]) for of_one in shown for row in of_one))
    lines = tuple(
        _bars(of_one, series_of, {id(row): number(row["p50_us"]) / scale for row in of_one})
        for of_one in shown
    )
    chart = BarChart(Label("Time of a run"), f"p50 ({unit})", lines)
    return chart, _hidden(len(shown), len(cases), "that take longest")


def _hidden(shown: int, count: int, which: str) -> tuple[str, ...]:
    return (f"The bars show the {shown} of {count:,} operators {which}.",) * (count > shown)


def _relative(row: Row, of_one: Sequence[Row]) -> float:
    return number(row["p50_us"]) / min(number(each["p50_us"]) for each in of_one)


def _slowest(of_one: Sequence[Row]) -> float:
    return max(_relative(row, of_one) for row in of_one)


def _bars(of_one: Sequence[Row], series_of: Mapping[int, str], values: Mapping[int, float]) -> BarRow:
    bars = []
    for row in of_one:
        p50_us = number(row["p50_us"])
        scale, unit = time_unit(p50_us)
        time = f"{readable(p50_us / scale)} {unit}"
        relative = f"{values[id(row)]:.2f} ×, " if len(of_one) > 1 else ""
        tooltip = f"{row['id']}: {_named(row)} in {series_of[id(row)]}: {relative}{time}"
        bars.append(Bar(values[id(row)], series_of[id(row)], f"{relative}{time}", tooltip))
    first = of_one[0]
    detail = str(first["inputs"])
    if len(detail) > _DETAIL_CHARACTERS:
        detail = f"{detail[: _DETAIL_CHARACTERS - 1]}…"
    mode = "" if first["mode"] == "forward" else f", {str(first['mode']).replace('_', ' + ')}"
    return BarRow(Label(f"{first['operator']}{mode}", detail), tuple(bars))


class OperatorsKind(Kind[OperatorMeasurement]):
    """Single operators of one framework."""

    name = "operators"
    title = "operators"
    phrase = "a benchmark of operators"
    collections = ("operator_row",)
    reports = {OperatorsReport: OperatorsPlot}
    comparable = True
    headlines = ("p50_us", "gflops_per_s", "gbytes_per_s", "max_difference")
    case_columns = ("operator", "form", "mode", "inputs", "parameters", "dtype", "api", "cache")
    of_a_model = False
    mixes = ("framework", "library ", "setting ")
    comparer = "inferometer.evaluators.comparing.operators:compare_operators_of"

    def to_documents(self, evaluation: Evaluation[OperatorMeasurement], save_id: str) -> Documents:
        measured = evaluation.measurement
        document = {
            "options": fields_of(measured.options),
            "peak": None if measured.peak is None else fields_of(measured.peak),
            "row_count": len(measured.rows),
        }
        return document, {"operator_row": Part(len(measured.rows), map(row_document, measured.rows))}

    def from_documents(self, head: Stored, parts: Mapping[str, Sequence[Stored]]) -> OperatorMeasurement:
        stored = head["measurement"]
        rows = tuple(map(row_from_document, parts["operator_row"]))
        if len(rows) != stored["row_count"]:
            raise ValueError(f"{len(rows)} of its {stored['row_count']} rows are present")
        return OperatorMeasurement(
            rows=rows,
            options=record(OperatorOptions, stored["options"]),
            peak=None if stored["peak"] is None else record(MachinePeak, stored["peak"]),
            elapsed_ns=int(head["elapsed_ns"]),
        )

    def summary(self, evaluation: Evaluation[OperatorMeasurement]) -> Rows:
        return operator_lines(evaluation)

    def document(self, evaluation: Evaluation[OperatorMeasurement], *more: Any) -> dict[str, Any]:
        measured = evaluation.measurement
        peak = None if measured.peak is None else asdict(measured.peak)
        return {"options": asdict(measured.options), "peak": peak, **super().document(evaluation, *more)}

    def drawings(self, evaluation: Evaluation[OperatorMeasurement], most_points: int) -> Iterator[Drawing]:
        # a legend with a name for each framework alone
        yield from drawn(OperatorsPlot(most_points=0), OperatorsReport(), evaluation)

    def again(self, evaluation: Evaluation[OperatorMeasurement]) -> Again:
        own = "It had custom sizes for several cases; give them with --cases=FILE.yaml."
        rows = evaluation.measurement.rows
        unnamed = _OWN in {row.preset for row in rows} and not _own_case(rows)
        notes = (own,) if unnamed else ()
        return Again(("op", "run", *_words_again(evaluation)), notes)

    def conditions(self, evaluation: Evaluation[OperatorMeasurement]) -> Mapping[str, str]:
        options = evaluation.measurement.options
        return {
            "dataset": evaluation.dataset.name,  # its size is the number of rows, which differs by framework
            "element type": options.dtype,
            "cache": options.cache.value,
            "seed": str(options.seed),
            **{name.replace("_", " "): str(value) for name, value in further(options, _KNOWN).items()},
        }


Place: TypeAlias = tuple[str, int, int]
"""A framework, the number of a cell in its plan, and the number of a process."""


class Journal:
    """A file of JSON lines, one for each row, that is removed when all rows are complete.

    Args:
        path: The file; None to keep nothing.
        resume: Whether to continue from its rows instead of starting afresh.

    It raises OutputError if the file cannot be written.
    """

    def __init__(self, path: Path | None, *, resume: bool) -> None:
        self._path = path
        self.rows: Mapping[Place, OperatorRow] = _read(path) if path is not None and resume else {}
        self._lines = None if path is None else LineJournal(path, synced=False, anew=not self.rows)

    def add(self, place: Place, row: OperatorRow) -> None:
        """Stores a row."""
        if self._lines is not None:
            self._lines.add({"place": list(place), "row": row_document(row)})

    def remove(self) -> None:
        """Removes the file, because all rows are complete."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _read(path: Path) -> Mapping[Place, OperatorRow]:
    """Returns the rows of the complete lines."""
    found: dict[Place, OperatorRow] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            content = json.loads(line)
            framework, cell, process = content["place"]
            found[str(framework), int(cell), int(process)] = row_from_document(content["row"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return found
