"""The content of the page as JSON values: reports, one evaluation and its facts, comparisons, charts.

Tables have cells with the values of the reports' JSON and the texts of the printed tables. This module
computes no figures: each comes from a report or from ``evaluators.comparing``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any, TypeAlias

import yaml

from inferometer.evaluators.comparing.comparison import DIFFERS, Side
from inferometer.evaluators.comparing.job import ComparisonRequest, compare
from inferometer.evaluators.drawing.charts import PointChart, Series
from inferometer.evaluators.evaluation import Evaluation, SpanSource, Status
from inferometer.evaluators.kinds.kind import timed_by
from inferometer.evaluators.kinds.registry import again, find_kind, find_report, kind_of, known_reports
from inferometer.evaluators.kinds.reports import TRACED_COLUMNS, OverviewReport, TraceReport
from inferometer.evaluators.reports.base import COMMON_COLUMNS, Column, Report, Row, Value, describe, finite
from inferometer.evaluators.reports.table import cell_text
from inferometer.manifests.errors import ConfigurationError


def text_of(value: Value, column: Column) -> str | None:
    """Returns the text of a cell; None if the value serves as its text, or is missing."""
    return cell_text(value, column) if isinstance(value, bool | float) else None


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def columns_of(
    columns: Iterable[Column], numeric: Iterable[str] = (), first: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Returns the columns, those with a key in ``first`` before the others, which become details."""
    known = {column.key: column for column in columns}
    numbers = set(numeric)
    return [
        {
            "key": key,
            "header": known[key].header,
            "numeric": key in numbers,
            "detail": bool(first) and key not in first,
        }
        for key in dict.fromkeys((*first, *known))
    ]


def table_of(report: str, caption: str, columns: Sequence[Column], rows: Iterable[Row]) -> dict[str, Any]:
    """Returns a report's rows as a table."""
    held = list(rows)
    numeric = [column.key for column in columns if any(_is_number(row[column.key]) for row in held)]
    return {
        "report": report,
        "caption": caption,
        "columns": columns_of(columns, numeric),
        "rows": [[finite(row[column.key]) for column in columns] for row in held],
        "texts": [[text_of(row[column.key], column) for column in columns] for row in held],
    }


def figures_of(
    report: str, columns: Sequence[Column], row: Row, headlines: Sequence[str], first: int = 0
) -> list[dict[str, Any]]:
    """Returns the numbers of a report's only row; interval bounds are attached to their figures.

    ``headlines`` are the keys of the main figures in order; ``first`` is the position of the first one among
    those of all reports.
    """
    known = {column.key: column for column in columns}
    figures = []
    for key, column in known.items():
        figure_key, _, end = key.rpartition("_")
        if end in ("low", "high") and figure_key in known:
            continue
        if not _is_number(row[key]) and not (row[key] is None and key in headlines):
            continue
        figure = {
            "key": key,
            "report": report,
            "label": column.header,
            "value": finite(row[key]),
            "text": text_of(row[key], column),
            "headline": first + headlines.index(key) if key in headlines else None,
        }
        for end in ("low", "high"):
            if (end_key := f"{key}_{end}") in known:
                figure[end] = finite(row[end_key])
                figure[f"{end}_text"] = text_of(row[end_key], known[end_key])
        figures.append(figure)
    return figures


_DIGITS = 6  # of a coordinate, which are more than any screen has points


def chart_document(title: str, chart: PointChart, notes: Sequence[str]) -> dict[str, Any]:
    """Returns a chart; an unbounded latency is null, which the page draws as an arrow."""
    told = "; ".join(series.tooltip.partition(": ")[2] or series.group for series in chart.series)
    return {
        "title": title,
        "label": f"{title}: {told}",
        "x_axis": chart.x_axis,
        "y_axis": chart.y_axis,
        "series": [_series(each) for each in chart.series],
        "rules": [{"at": rule.at, "text": rule.text, "upright": rule.upright} for rule in chart.rules],
        "bands": [{"start": band.start, "end": band.end, "text": band.text} for band in chart.bands],
        "x_range": chart.x_range,
        "x_logarithmic": chart.x_logarithmic,
        "y_logarithmic": chart.y_logarithmic,
        "tall": chart.tall,
        "notes": list(notes),
    }


def _series(series: Series) -> dict[str, Any]:
    order = sorted(range(len(series.x)), key=lambda place: series.x[place])
    return {
        "name": series.group,
        "x": [_coordinate(series.x[place]) for place in order],
        "y": [_coordinate(series.y[place]) for place in order],
        "line": series.line,
        "mark": series.mark.value,
        "size": series.size,
    }


def _coordinate(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded


_GIB = 1024**3
_NS_PER_S = 1_000_000_000


def facts_of(
    evaluation: Evaluation, timed: Evaluation, told: Sequence[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """Yields sections, each with a heading and its facts: a name and a text.

    See ``timed_by`` for ``timed``; ``told`` are further facts about the measurement.
    """
    system, machine, dataset = evaluation.system, evaluation.system.environment, evaluation.dataset
    measured = list(_measured(evaluation, timed))
    known_names = {name for name, _ in measured} | {"dataset", "INVALID"}
    yield _section("Measurement", [*measured, *((n, t) for n, t in told if n not in known_names)])
    conditions = evaluation.conditions
    if conditions is not None:
        reasons = [("reason", reason) for reason in conditions.reasons]
        yield _section(
            "Conditions", [("verdict", conditions.stability.value), *reasons, ("note", conditions.note)]
        )
    yield _section(
        "Model",
        [
            ("model", f"{system.manifest.name} {system.manifest.version}"),
            ("weights", system.weights_text),
            *((f"checksum of {part}", checksum) for part, checksum in system.checksums.items()),
            ("dataset", " ".join(filter(None, (dataset.name, dataset.version)))),
            ("inputs of the dataset", dataset.size),
            ("samples of the dataset", dataset.chosen_samples),
            ("checksum of the dataset", dataset.checksum),
        ],
    )
    memory = f"{machine.memory_bytes / _GIB:.0f} GiB" if machine.is_known and machine.memory_bytes else None
    yield _section(
        "System",
        [
            ("device", system.device),
            ("threads", system.threads),
            ("precision", system.precision_text),
            ("preprocessing threads", system.preprocess_threads),
            ("agent", system.agent),
            ("host", machine.hostname),
            ("CPU", machine.cpu_model),
            ("usable cores", machine.usable_cores if machine.is_known else None),
            ("memory", memory),
            *(("GPU", f"{gpu.name}, {gpu.memory_bytes / _GIB:.0f} GiB") for gpu in machine.gpus),
            ("GPU driver", machine.gpu_driver),
            ("system", machine.operating_system),
            ("kernel", machine.kernel),
            ("frequency governor", machine.governor),
        ],
    )
    yield _section(
        "Software",
        [
            ("framework", f"{system.manifest.framework.name} {system.framework_version}"),
            ("Python", machine.python_version),
            ("inferometer", machine.inferometer_version),
            ("build", machine.built_with),
            *machine.libraries.items(),
            *machine.settings.items(),
            *machine.variables.items(),
        ],
    )
    if (trace := evaluation.trace) is not None:
        yield _section(
            "Trace",
            [
                ("trace", trace.trace_id),
                ("level", evaluation.trace_level.name),
                ("spans", trace.span_count),
                ("dropped", trace.dropped or None),
                ("url", trace.url),
                *(("note", note) for note in trace.notes),
            ],
        )


def _section(heading: str, rows: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {
        "heading": heading,
        "rows": [[name, str(value)] for name, value in rows if value not in (None, "")],
    }


def _measured(evaluation: Evaluation, timed: Evaluation) -> Iterator[tuple[str, Any]]:
    """Yields facts about the measurement: the options, and where the time went."""
    measurement = evaluation.measurement
    kind = kind_of(evaluation)
    yield "kind", kind.title
    yield "measured for", f"{measurement.elapsed_ns / _NS_PER_S:.3f} s"
    yield from kind.facts(evaluation, timed)
    options = getattr(measurement, "options", None)
    if options is not None and not isinstance(options, Mapping):
        options = {each.name: getattr(options, each.name) for each in fields(options)}
    given = dict(options or {})
    for name, value in (given | given.pop("further", {})).items():
        yield "loss function" if name == "loss" else name.replace("_", " "), _option_text(value)


def _option_text(value: Any) -> str | None:
    """Returns an option as text; None if it was omitted."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
    return str(getattr(value, "value", value))


_FIRST = (
    "created_at",
    "model_name",
    "framework_name",
    "batch_size",
    "kind",
    "latency_ms_p50",
    "rate_per_s",
    "top1_accuracy",
    "score",
    "stability",
    "id",
)
"""The columns of the table of evaluations; the others are shown on demand."""
_NUMERIC = ("batch_size", "threads", "latency_ms_p50", "rate_per_s", "top1_accuracy", "score")
_MOST_ROWS = 2000
_ASIDE = {*COMMON_COLUMNS, *TRACED_COLUMNS}
_OPTIONS = {
    "arrival",
    "concurrency",
    "judged_percentile",
    "latency_bound_ms",
    "percentile",
    "rate_qps",
    "schedule_checksum",
    "seed",
}
"""The report columns that repeat load options, which the facts already show."""


def overview_columns() -> list[dict[str, Any]]:
    """Returns the columns of the table of evaluations, in the order of the page."""
    return columns_of(OverviewReport.columns, _NUMERIC, _FIRST)


SORTABLE = tuple(column.key for column in OverviewReport.columns)
"""The keys of the columns that the table can be sorted by."""


def sort_key(value: Any) -> tuple[int, Any]:
    """Returns the sort key of a value of the table: numbers first, by size, then texts, ignoring case."""
    return (0, value) if isinstance(value, int | float) else (1, str(value).casefold())


def overview_rows(evaluations: Sequence[Evaluation]) -> Iterator[dict[str, Any]]:
    """Yields a row of the table for each evaluation."""
    known = {column.key: column for column in OverviewReport.columns}
    keys = [column["key"] for column in overview_columns()]
    for evaluation, row in zip(evaluations, OverviewReport().rows(evaluations), strict=True):
        created = _moment(evaluation.created_at)
        texts = [created if key == "created_at" else text_of(row[key], known[key]) for key in keys]
        if row["score_name"]:  # scores of several tasks are in one column
            score = keys.index("score")
            texts[score] = f"{texts[score]} {row['score_name']}"
        yield {
            "id": evaluation.id,
            "name": f"{row['model_name']} {row['model_version']}, {row['framework_name']}, {created}",
            "under": [
                str(row["framework_name"]),
                f"batch {row['batch_size']}",
                *([] if row["kind"] == find_kind("batches").title else [str(row["kind"])]),
                created[5:16],
            ],
            "conditions": None if evaluation.conditions is None else str(evaluation.conditions),
            "values": [finite(row[key]) for key in keys],
            "texts": texts,
        }


Reports: TypeAlias = Mapping[str, Report[Any]]


def page_reports() -> Reports:
    """Returns the reports by name, including those of plug-ins, whose discovery is slow."""
    return {name: find_report(name) for name in known_reports()}


def evaluation_document(
    evaluation: Evaluation,
    group: Sequence[Evaluation],
    reports: Reports,
    spans: SpanSource | None,
    omitted: str = "",
) -> dict[str, Any]:
    """Returns all that the page shows of one evaluation.

    ``spans`` of None leaves out pictures and layers; the page then shows the text ``omitted`` in their place.
    """
    system, conditions = evaluation.system, evaluation.conditions
    timed = timed_by(evaluation, group)
    figures, told, tables = _reported(evaluation, timed, reports, spans)
    command = again(evaluation)
    kind = kind_of(evaluation)
    batch = f"batch size {evaluation.measurement.batch_size} · " if kind.of_a_model else ""
    framework = f"{system.manifest.framework.name} {system.framework_version}".rstrip()
    return {
        "id": evaluation.id,
        "title": f"{system.manifest.name} {system.manifest.version}",
        "subtitle": f"{framework} · {system.device} · {batch}{kind.title}",
        "created_at": describe(evaluation)["created_at"],
        "created_text": f"{_moment(evaluation.created_at)} UTC",
        "status": evaluation.status.value,
        "stability": None if conditions is None else conditions.stability.value,
        "conditions": None if conditions is None else str(conditions),
        "invalid": kind.invalid(evaluation.measurement) or None,
        "remarks": list(_remarks(evaluation, timed)),
        "figures": figures,
        "hints": list(kind.hints(timed)),
        "charts": [] if spans is None else charts_of(evaluation, group),
        "omitted": omitted or None,
        "tables": tables,
        "facts": list(facts_of(evaluation, timed, told)),
        "manifest_name": f"{system.manifest.name} for {system.manifest.framework.name}",
        "manifest": manifest_text(evaluation),
        "command": {"line": command.line, "notes": list(command.notes)},
        "group": [{"id": each.id, "text": f"{each.id}  {_part(each, evaluation)}"} for each in group],
    }


def manifest_text(evaluation: Evaluation) -> str:
    """Returns the model's manifest as YAML, without the fields that have their default values."""
    content = evaluation.system.manifest.model_dump(mode="json", exclude_defaults=True)
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    return text


def _part(evaluation: Evaluation, shown: Evaluation) -> str:
    """Returns what tells an evaluation from the one of its group that is shown."""
    process = [] if evaluation.process is None else [f"process {evaluation.process}"]
    rows, known = (kind_of(each).description(each) for each in (evaluation, shown))
    differs = [text for name, text in sorted({*rows} - {*known}) if name]
    return ", ".join([evaluation.trace_level.name, *process, *differs])


def _moment(when: datetime) -> str:
    return f"{when.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}"


def _remarks(evaluation: Evaluation, timed: Evaluation) -> Iterator[str]:
    conditions = evaluation.conditions
    if conditions is not None and conditions.warning:
        yield f"Another run may give other figures: {conditions}."
    if timed is not evaluation:
        whose = f"{timed.id} ({timed.trace_level.name})"
        yield f"Latency and throughput are those of {whose}: no profiler slowed it down."
    elif evaluation.profiled:
        yield "Latency and throughput are under the framework's profiler, which slows the model down."
    if evaluation.status is Status.FAILED:
        yield "Every input failed: no figure is of the model."
    if evaluation.status is Status.INTERRUPTED:
        yield "It was interrupted: the figures cover what was measured until then."


def _reported(
    evaluation: Evaluation, timed: Evaluation, reports: Reports, spans: SpanSource | None
) -> tuple[list[dict[str, Any]], list[tuple[str, str]], list[dict[str, Any]]]:
    """Returns the figures, other values by name, and tables of all reports that accept the evaluation."""
    figures: list[dict[str, Any]] = []
    told: list[tuple[str, str]] = []
    tables: list[dict[str, Any]] = []
    kind = kind_of(evaluation)
    taking = [each for each in reports.values() if not each.only_drawn and each.taken([evaluation])]
    for report in (*taking, *(each() for each in kind.tabled)):
        columns = [column for column in report.columns if column not in _ASIDE]
        headlines = kind.headlines if type(report) in list(kind.reports)[:1] else ()
        if isinstance(report, TraceReport):
            rows = list(report.rows_of([evaluation], spans)) if spans is not None else []
        elif report.has_tables:  # with the columns of the evaluation's task
            [table] = report.tables([evaluation])
            columns, rows = [column for column in table.columns if column not in _ASIDE], list(table.rows)
            headlines = tuple(column.key for column in columns[:1])
        else:
            rows = list(report.rows([timed if report.undisturbed else evaluation]))
        if isinstance(report, (TraceReport, *kind.tabled)) or len(rows) > 1:
            if rows:
                rest = f"; the first {_MOST_ROWS:,} of {len(rows):,} rows" if len(rows) > _MOST_ROWS else ""
                caption = f"{report.summary[:1].upper()}{report.summary[1:]}{rest}"
                tables.append(table_of(report.name, caption, columns, rows[:_MOST_ROWS]))
        elif rows:
            columns = [column for column in columns if column.key not in _OPTIONS]
            figures += figures_of(report.name, columns, rows[0], headlines, len(figures))
            texts = (column for column in columns if isinstance(rows[0][column.key], bool | str))
            told += [(column.header, cell_text(rows[0][column.key], column)) for column in texts]
    return figures, told, tables


def comparison_document(a: Side, b: Side, left_out: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the comparison that ``agent compare`` makes by default, or why the two cannot be compared."""
    ids = (",".join(each.id for each in side.evaluations) for side in (a, b))
    document: dict[str, Any] = {
        "a": _side(a),
        "b": _side(b),
        "command": f"agent compare {' '.join(ids)}",
        "error": None,
    }
    try:
        compared = compare(ComparisonRequest(a=a, b=b))
    except ConfigurationError as error:
        return document | {"error": str(error)}
    one, other = a.evaluations[0], b.evaluations[0]
    notes = (note for note in compared.notes if not note.startswith(DIFFERS))
    return document | {
        **table_of("comparison", "", compared.columns, compared.rows),
        "conclusion": compared.conclusion,
        "worse": compared.worse,
        "notes": [*left_out, *notes, *compared.undecided],
        "differs": [list(each) for each in a.differing(b)],
        "chart": _compared_chart(one, other),
    }


def _side(side: Side) -> dict[str, Any]:
    first = side.evaluations[0].system
    framework = f"{first.manifest.framework.name} {first.framework_version}".rstrip()
    return {
        "title": f"{first.manifest.name} {first.manifest.version} · {framework}",
        "evaluations": [
            {"id": each.id, "text": f"{_moment(each.created_at)}  {each.id[:8]}"} for each in side.evaluations
        ],
    }


_MOST_BATCHES = 20_000
"""Above this number of batches, the page shows the shortest and longest of each stretch."""


def charts_of(evaluation: Evaluation, group: Sequence[Evaluation] = ()) -> list[dict[str, Any]]:
    """Returns the pictures of an evaluation, such as the time of each query, and that of its ``group``."""
    kind, name = kind_of(evaluation), evaluation.measurement.kind
    together = [evaluation, *(other for other in group if other.measurement.kind == name)]
    of_all = kind.group_drawing(together) if len(together) > 1 else None
    drawings = [*kind.drawings(evaluation, _MOST_BATCHES), *filter(None, [of_all])]
    return [
        chart_document(each.title, chart, each.notes)
        for each in drawings
        for chart in each.charts
        if isinstance(chart, PointChart)
    ]


def _compared_chart(a: Evaluation, b: Evaluation) -> dict[str, Any] | None:
    """Returns a picture of the times of two evaluations; None if they have none."""
    kind = kind_of(a)
    drawing = kind.compared_drawing(a, b, _MOST_BATCHES) if kind is kind_of(b) else None
    if drawing is None:
        return None
    [chart] = drawing.charts
    return chart_document(drawing.title, chart, ()) if isinstance(chart, PointChart) else None
