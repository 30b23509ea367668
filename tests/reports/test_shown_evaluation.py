"""One evaluation shown: golden outputs, and which evaluation of a group provides the times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferometer.agent.hardware.environment import Gpu, Weights
from inferometer.agent.tracing.recorder import SpanChunk, SpanKind, SpanRecorder, TraceContext, TraceLevel
from inferometer.client.commands.show import as_document, lines_of
from inferometer.evaluators.evaluation import Evaluation, Status, TraceSummary
from inferometer.evaluators.kinds.kind import timed_by
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement, MlperfResult, Scenario
from tests.evaluations import changed
from tests.reports.loads import calm, overloaded, searched

GOLDEN = Path(__file__).parent / "golden"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
LAYERS = 12


def record(batches: int) -> tuple[SpanChunk, ...]:
    """Layers of which each takes longer than the one before, and the fifth has a name that is too long."""
    recorder = SpanRecorder(TraceContext(TRACE_ID), TraceLevel.FRAMEWORK_TRACE)
    for batch in range(batches):
        for index in range(LAYERS):
            kind = SpanKind.of(
                f"block.{'inner.' * 8}{index}" if index == 4 else f"layer{index}",
                TraceLevel.FRAMEWORK_TRACE,
                layer_index=index,
                layer_type="Convolution" if index % 2 else "Activation",
                input_shapes=("8x3x4x4", "3x3"),
            )
            begin = (batch * LAYERS + index) * 1_000_000
            recorder.add(kind, begin, begin + (index + 1) * 10_000 + batch, 1, batch=batch)
    return recorder.chunks()


def profiled(evaluation: Evaluation) -> Evaluation:
    """The evaluation on a GPU, under the profiler, with everything that can be shown of one."""
    environment = replace(evaluation.system.environment, gpus=(Gpu("A GPU", 80 * 2**30, "GPU-1"),))
    trace = TraceSummary(
        TRACE_ID, 4 * LAYERS, 3, ("no peak memory",), f"http://tracer:16686/trace/{TRACE_ID}"
    )
    return replace(
        evaluation,
        system=replace(evaluation.system, environment=environment, checksums={"graph": "sha256:00ff"}),
        trace=trace,
        spans=record(4),
        group_id="99999999-9999-4999-8999-999999999999",
    )


def at(evaluation: Evaluation, level: TraceLevel, **changes: object) -> Evaluation:
    """The same at another level, under another id and with other times."""
    times = evaluation.measurement.times
    halved = replace(times, predict_ns=times.predict_ns // 2)
    shallow = changed(evaluation, id=f"at-{level.name}", times=halved, trace=None, spans=())
    return changed(shallow, trace_level=level, **changes)


@pytest.fixture
def shown(evaluations: list[Evaluation]) -> dict[str, tuple[Evaluation, Sequence[Evaluation]]]:
    """What is shown, with the others of its group, by the name of its golden file."""
    deep = profiled(evaluations[1])
    random = replace(evaluations[0].system, weights=Weights.RANDOM, seed=7)
    return {
        "show_untraced": (replace(evaluations[0], system=random), ()),
        "show_profiled": (deep, ()),
        "show_group": (deep, (at(deep, TraceLevel.MODEL_TRACE), at(deep, TraceLevel.FULL_TRACE))),
        "show_no_full_batch": (evaluations[2], ()),
        "show_workload": (calm(evaluations[0]), ()),
        "show_overloaded": (overloaded(evaluations[1]), ()),
        "show_search": (searched(evaluations[0]), ()),
    }


def spans_of(evaluation: Evaluation) -> Iterator[SpanChunk]:
    return iter(evaluation.spans)


@pytest.mark.parametrize(
    "name",
    [
        *("show_untraced", "show_profiled", "show_group", "show_no_full_batch"),
        *("show_workload", "show_overloaded", "show_search"),
    ],
)
def test_what_is_shown_is_its_golden_output(
    name: str, shown: dict[str, tuple[Evaluation, Sequence[Evaluation]]]
) -> None:
    evaluation, group = shown[name]

    text = "".join(f"{line}\n" for line in lines_of(evaluation, group, lambda _: spans_of(evaluation)))
    document = as_document(evaluation, timed_by(evaluation, group), group, lambda _: spans_of(evaluation))

    assert text == (GOLDEN / f"{name}.text").read_text(encoding="utf-8")
    written = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    assert written == (GOLDEN / f"{name}.json").read_text(encoding="utf-8")


def test_the_times_are_of_a_complete_evaluation_that_no_profiler_disturbed(
    evaluations: list[Evaluation],
) -> None:
    deep = profiled(evaluations[1])
    cut_off = at(deep, TraceLevel.NO_TRACE, status=Status.INTERRUPTED)
    whole = at(deep, TraceLevel.MODEL_TRACE, status=Status.COMPLETE)
    deeper = at(deep, TraceLevel.FULL_TRACE)

    assert timed_by(deep, (cut_off, whole, deeper)) is whole
    assert timed_by(deep, (cut_off, deeper)) is cut_off
    assert timed_by(deep, (deeper,)) is deep
    assert timed_by(cut_off, (whole, deep)) is cut_off


def test_no_time_of_a_profiled_run_is_shown_where_another_of_the_group_has_it(
    evaluations: list[Evaluation],
) -> None:
    deep = profiled(evaluations[1])
    marked = changed(deep, times=replace(deep.measurement.times, predict_ns=np.full(4, 10**12, np.int64)))
    shallow = at(deep, TraceLevel.MODEL_TRACE)

    alone = "\n".join(lines_of(marked, (), lambda _: iter(())))
    grouped = "\n".join(lines_of(marked, (shallow,), lambda _: iter(())))

    for figure in ("mean 1000000.000", "trimmed mean 1000000.000", "predict 25.0 %"):
        assert figure in alone
        assert figure not in grouped
    assert f"of {shallow.id} (MODEL_TRACE): no profiler slowed it down" in grouped


def test_an_evaluation_under_load_has_no_figures_of_batches(evaluations: list[Evaluation]) -> None:
    for evaluation in (calm(evaluations[0]), overloaded(evaluations[1]), searched(evaluations[0])):
        text = "\n".join(lines_of(evaluation, (), lambda _: iter(())))
        document = as_document(evaluation, evaluation, (), lambda _: iter(()))

        for misleading in ("predicted", "accuracy", "top-1", "throughput", "stages", "not known"):
            assert misleading not in text
        assert not {"predicted_inputs", "batches", "timing", "accuracy", "layers"} & set(document)


def test_mlperfs_own_verdict_is_in_the_object(evaluations: list[Evaluation]) -> None:
    evaluation = calm(evaluations[0])
    assert isinstance(evaluation.measurement, LoadMeasurement)
    result = MlperfResult("6.0", False, ("too short",), 9, 99.5, 5, ((50.0, 4),), None, True, "logs")
    options = replace(evaluation.measurement.options, scenario=Scenario.SERVER)
    load = replace(evaluation.measurement, options=options, mlperf=result)

    document = as_document(replace(evaluation, measurement=load), evaluation, (), lambda _: iter(()))

    shown = json.loads(json.dumps(document, allow_nan=False))["load"]
    assert shown["options"]["scenario"] == "server"
    assert shown["mlperf"]["valid"] is False
    assert shown["mlperf"]["percentiles_ns"] == [[50.0, 4]]
