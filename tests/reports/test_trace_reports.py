"""The reports on traces, against figures computed here from the same times."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inferometer.agent.tracing.recorder import (
    SpanChunk,
    SpanKind,
    SpanRecorder,
    TraceContext,
    TraceLevel,
    span_id_text,
)
from inferometer.evaluators.evaluation import Evaluation, TraceSummary
from inferometer.evaluators.kinds.registry import find_report
from inferometer.evaluators.kinds.reports import TraceReport
from inferometer.evaluators.reports.base import Row
from inferometer.evaluators.reports.writer import Format, write

GOLDEN = Path(__file__).parent / "golden"
LAYERS = (("conv1", "Convolution"), ("relu", "Activation"), ("conv2", "Convolution"))
FULL = (0, 1, 3)
"""The batches of ``on_gpu`` that are full; number 2 lost an input."""


def layer_us(layer: int, batch: int) -> int:
    return 100 * (layer + 1) + 7 * batch


def record(recorder: SpanRecorder, batches: int) -> None:
    for batch in range(batches):
        begin, predict = batch * 10_000_000, recorder.new_id()
        start = begin
        for index, (name, type_) in enumerate(LAYERS):
            end = start + 1000 * layer_us(index, batch)
            kind = SpanKind.of(
                name,
                TraceLevel.FRAMEWORK_TRACE,
                layer_index=index,
                layer_type=type_,
                input_shapes=("8x3x4x4",),
                allocated_bytes=index * 1000,
            )
            layer = recorder.add(kind, start, end, predict, batch=batch)
            call = SpanKind.of("cudaLaunchKernel", TraceLevel.SYSTEM_LIBRARY_TRACE, correlation_id=index)
            operator = SpanKind("aten::conv2d", TraceLevel.ML_LIBRARY_TRACE)
            inner = recorder.add(operator, start, end, layer, batch=batch)
            recorder.add(call, start, start + 2000, inner, batch=batch)
            kernel = SpanKind.of(f"gemm_{type_}", TraceLevel.SYSTEM_LIBRARY_TRACE, activity="kernel")
            recorder.add(kernel, start, start + 50_000, layer, batch=batch, thread=-8)
            start = end
        recorder.add(
            SpanKind("predict", TraceLevel.MODEL_TRACE), begin, start, 0, span_id=predict, batch=batch
        )


@pytest.fixture
def always_the_same(monkeypatch: pytest.MonkeyPatch) -> SpanRecorder:
    """A recorder whose ids and times are the same every time."""
    monkeypatch.setattr("inferometer.agent.tracing.recorder.secrets.randbits", lambda bits: 7)
    context = TraceContext("0af7651916cd43dd8448eb211c80319c")
    return SpanRecorder(
        context, TraceLevel.FULL_TRACE, clock=lambda: 0, wall_clock=lambda: 1_700_000_000 * 10**9
    )


@pytest.mark.parametrize("name", ["layers", "layer_tree", "cuda_launch", "eventflow", "duration"])
@pytest.mark.parametrize("output_format", Format)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_report_is_its_golden_output(
    name: str, output_format: Format, count: int, always_the_same: SpanRecorder, evaluations: list[Evaluation]
) -> None:
    golden = GOLDEN / f"{name}_{count}.{output_format.value}"
    record(always_the_same, 2)
    first = in_evaluation(evaluations[1], always_the_same)
    chosen = [first, replace(first, id="00000000-0000-4000-8000-00000000000f")][:count]
    report = find_report(name)
    rows = rows_of(name, *chosen) if isinstance(report, TraceReport) else list(report.rows(chosen))
    stream = io.StringIO()

    assert write(report.columns, iter(rows), output_format, stream) == len(rows)

    assert stream.getvalue() == golden.read_text(encoding="utf-8")


def in_evaluation(evaluation: Evaluation, recorder: SpanRecorder) -> Evaluation:
    """An evaluation with what a recorder has recorded as its trace."""
    summary = TraceSummary(recorder.context.trace_id, len(recorder))
    return replace(evaluation, trace_level=TraceLevel.FULL_TRACE, trace=summary, spans=recorder.chunks())


@pytest.fixture
def traced(evaluations: list[Evaluation]) -> Evaluation:
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FULL_TRACE)
    record(recorder, 4)
    return in_evaluation(evaluations[1], recorder)


def rows_of(name: str, *evaluations: Evaluation) -> list[Row]:
    report = find_report(name)
    assert isinstance(report, TraceReport)
    by_id = {evaluation.id: evaluation.spans for evaluation in evaluations}

    def spans(evaluation_id: str) -> Iterator[SpanChunk]:
        return iter(by_id[evaluation_id])

    rows = list(report.rows_of(evaluations, spans))
    assert all(set(row) == {column.key for column in report.columns} for row in rows)
    return rows


def test_layers_have_the_times_of_the_full_batches(traced: Evaluation) -> None:
    rows = rows_of("layers", traced)

    assert [(r["layer_index"], r["layer_name"], r["layer_type"], r["input_shapes"]) for r in rows] == [
        (index, name, type_, "8x3x4x4") for index, (name, type_) in enumerate(LAYERS)
    ]
    whole = sum(layer_us(layer, batch) for layer in range(3) for batch in FULL)
    for index, row in enumerate(rows):
        times = [layer_us(index, batch) for batch in FULL]
        assert row["occurrences"] == 3
        assert row["total_us"] == sum(times)
        assert row["duration_us_trimmed_mean"] == sorted(times)[1]
        assert row["duration_us_p50"] is row["duration_us_p99"] is None, "three times carry no percentile"
        assert row["share_percent"] == pytest.approx(100 * sum(times) / whole)
        assert row["allocated_bytes"] == index * 1000
        assert row["trace_level"] == "FULL_TRACE"


@pytest.mark.parametrize("name", ["layers", "layer_tree"])
def test_shares_make_a_hundred_percent(name: str, traced: Evaluation) -> None:
    assert sum(float(r["share_percent"] or 0) for r in rows_of(name, traced)) == pytest.approx(100)


def test_shares_of_the_device_and_of_the_calls_that_drive_it_make_a_hundred_percent_each(
    traced: Evaluation,
) -> None:
    shares = {"kernel": 0.0, "runtime call": 0.0}
    for row in rows_of("cuda_launch", traced):
        shares[str(row["activity"])] += float(row["share_percent"] or 0)
    assert shares == {"kernel": pytest.approx(100), "runtime call": pytest.approx(100)}


def test_types_sum_up_their_layers_the_heaviest_first(traced: Evaluation) -> None:
    convolution, activation = rows_of("layer_tree", traced)

    assert (convolution["layer_type"], convolution["layers"], convolution["occurrences"]) == (
        "Convolution",
        2,
        6,
    )
    assert convolution["total_us"] == sum(layer_us(0, b) + layer_us(2, b) for b in FULL)
    assert convolution["allocated_bytes"] == 2000
    assert (activation["layer_type"], activation["occurrences"]) == ("Activation", 3)
    layers = rows_of("layers", traced)
    assert sum(float(r["total_us"] or 0) for r in layers) == pytest.approx(
        float(convolution["total_us"] or 0) + float(activation["total_us"] or 0)
    )


def test_kernels_are_related_to_their_layers_also_through_operators(traced: Evaluation) -> None:
    rows = rows_of("kernels", traced)

    found = {(r["layer_name"], r["kernel_name"]): r for r in rows}
    assert len(found) == len(rows) == 6
    kernel = found["conv1", "gemm_Convolution"]
    assert (kernel["activity"], kernel["occurrences"], kernel["total_us"]) == ("kernel", 3, 150)
    call = found["conv2", "cudaLaunchKernel"]
    assert (call["activity"], call["occurrences"], call["total_us"]) == ("runtime call", 3, 6)


def test_eventflow_has_every_span_with_its_parent(traced: Evaluation) -> None:
    rows = rows_of("eventflow", traced)

    assert len(rows) == 4 * (3 * 4 + 1)
    by_id = {row["span_id"]: row for row in rows}
    assert len(by_id) == len(rows)
    for row in rows:
        if row["name"] == "predict":
            assert row["parent_id"] is None
        else:
            assert row["parent_id"] in by_id
    [first] = [r for r in rows if r["name"] == "conv1" and r["batch"] == 0]
    assert first["duration_us"] == layer_us(0, 0)
    assert json.loads(str(first["attributes"]))["inferometer.layer_type"] == "Convolution"
    assert first["span_id"] == span_id_text(int(traced.spans[0].span_id[0]))


def test_evaluations_that_were_not_traced_deep_enough_have_no_rows(
    traced: Evaluation, evaluations: list[Evaluation]
) -> None:
    shallow = replace(traced, id="shallow", trace_level=TraceLevel.MODEL_TRACE)
    untraced = evaluations[0]

    assert rows_of("layers", shallow, untraced) == []
    assert {row["id"] for row in rows_of("layers", shallow, traced, untraced)} == {traced.id}
    assert list(find_report("layers").rows([traced])) == []


def test_durations_are_the_raw_times_of_every_batch(evaluations: list[Evaluation]) -> None:
    rows = list(find_report("duration").rows(evaluations[:1]))

    assert [row["predict_us"] for row in rows] == [2000, 1000, 3000, 2500, 9000, 1500, 100]
    assert [row["inputs"] for row in rows] == [16] * 6 + [4]
    assert [row["batch"] for row in rows] == list(range(7))
    assert rows[0]["read_us"] == 10**9
    assert rows[0]["postprocess_us"] == (10**12 + 2) / 1000
