"""Evaluations to plot, and readers of the resulting plots."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace

from inferometer.agent.tracing.recorder import SpanKind, SpanRecorder, TraceContext, TraceLevel
from inferometer.evaluators.drawing.charts import Drawing
from inferometer.evaluators.evaluation import Evaluation, TraceSummary
from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement
from inferometer.evaluators.kinds.registry import declared_reports, find_plot, find_report
from inferometer.evaluators.kinds.reports import TraceReport
from inferometer.evaluators.reports.base import Row

REPORTS = [report.name for report, _ in declared_reports()]
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<b>&amp; \"q\" 'a' $\\frac{1}{2}$ $x_1$ ü 模型 ]]> -->\x00\n\u202e"
SHALLOW = ("latency", "accuracy", "duration")
LOADS = ("workload", "max_qps", "parts", "mix", "mix_search")
LAYERS = 33


def record(recorder: SpanRecorder, name: str) -> None:
    """A measurement of two batches: layers one after the other, of 1, 2, 3, … µs, each with one kernel."""
    measure = recorder.add(SpanKind("measure", TraceLevel.APPLICATION_TRACE), 0, 2_000_000, 0)
    for batch in range(2):
        begin = start = batch * 1_000_000
        predict = recorder.new_id()
        for index in range(LAYERS):
            end = start + 1000 * (index + 1)
            attributes = {"layer_index": index, "layer_type": f"{name}{index % 3}"}
            kind = SpanKind.of(f"{name}{index}", TraceLevel.FRAMEWORK_TRACE, **attributes)
            layer = recorder.add(kind, start, end, predict, batch=batch)
            kernel = SpanKind.of(f"k{index % 2}{name}", TraceLevel.SYSTEM_LIBRARY_TRACE, activity="kernel")
            recorder.add(kernel, start, start + 500, layer, batch=batch, thread=-7)
            start = end
        kind = SpanKind("predict", TraceLevel.MODEL_TRACE)
        recorder.add(kind, begin, start, measure, span_id=predict, batch=batch)


def traced(evaluation: Evaluation, name: str = "layer") -> Evaluation:
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FULL_TRACE)
    record(recorder, name)
    summary = TraceSummary(recorder.context.trace_id, len(recorder))
    return replace(evaluation, trace_level=TraceLevel.FULL_TRACE, trace=summary, spans=recorder.chunks())


def rows_of(name: str, evaluations: Sequence[Evaluation]) -> list[Row]:
    report = find_report(name)
    if isinstance(report, TraceReport):
        by_id = {evaluation.id: evaluation.spans for evaluation in evaluations}
        return list(report.rows_of(evaluations, lambda wanted: iter(by_id[wanted])))
    return list(report.rows(evaluations))


def drawn(name: str, evaluations: Sequence[Evaluation]) -> Drawing | None:
    evaluations = find_report(name).taken(evaluations)
    return find_plot(find_report(name)).draw(evaluations, rows_of(name, evaluations))


def picture(name: str, evaluations: Sequence[Evaluation]) -> Drawing:
    drawing = drawn(name, evaluations)
    assert drawing is not None
    return drawing


def titles(svg: str) -> list[str]:
    """The tooltips of the marks, in order."""
    found = [group for group in ElementTree.fromstring(svg).iter(f"{SVG}g") if "mark" in group.get("id", "")]
    return [group.findtext(f"{SVG}title") or "" for group in found]


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def renamed(evaluation: Evaluation, name: str) -> Evaluation:
    measurement = evaluation.measurement
    if isinstance(measurement, OperatorMeasurement):
        rows = tuple(replace(row, operator=name) for row in measurement.rows)
        return replace(evaluation, measurement=replace(measurement, rows=rows))
    manifest = evaluation.system.manifest.model_copy(update={"name": name})
    return replace(evaluation, system=replace(evaluation.system, manifest=manifest))
