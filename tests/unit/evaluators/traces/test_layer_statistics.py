"""The layers of a trace, summed over batches, against sums computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from inferometer.agent.tracing.recorder import SpanKind, SpanRecorder, TraceContext, TraceLevel
from inferometer.evaluators.traces.layers import layers

LAYERS = ("conv1", "relu", "fc")


def layer_kind(index: int, batch_size: int, allocated: int | None = None) -> SpanKind:
    return SpanKind.of(
        LAYERS[index],
        TraceLevel.FRAMEWORK_TRACE,
        layer_index=index,
        layer_type=f"op{index}",
        input_shapes=(f"{batch_size}x3",),
        allocated_bytes=allocated,
    )


def recorder_of(batch_sizes: list[int], *, chunked: bool = False) -> SpanRecorder:
    """Batches of 100 ns each, in which layer i takes 10 · (i + 1) + batch nanoseconds."""
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FULL_TRACE)
    for batch, size in enumerate(batch_sizes):
        begin = batch * 1000
        predict = recorder.new_id()
        start = begin
        for index in range(len(LAYERS)):
            end = start + 10 * (index + 1) + batch
            kind = layer_kind(index, size, allocated=index * 100 + batch or None)
            inner = recorder.add(kind, start, end, predict, batch=batch)
            recorder.add(SpanKind("aten::inner", TraceLevel.ML_LIBRARY_TRACE), start, end, inner, batch=batch)
            start = end
        if chunked:
            recorder.chunks()
        recorder.add(
            SpanKind("predict", TraceLevel.MODEL_TRACE), begin, begin + 100, 0, span_id=predict, batch=batch
        )
    return recorder


@pytest.mark.parametrize("chunked", [False, True])
def test_each_layer_has_a_duration_for_each_batch_in_the_order_of_execution(chunked: bool) -> None:
    found = layers(recorder_of([4, 4, 4], chunked=chunked).chunks())

    assert [(layer.index, layer.name, layer.type, layer.input_shapes) for layer in found] == [
        (0, "conv1", "op0", ("4x3",)),
        (1, "relu", "op1", ("4x3",)),
        (2, "fc", "op2", ("4x3",)),
    ]
    assert [layer.durations_ns.tolist() for layer in found] == [[10, 11, 12], [20, 21, 22], [30, 31, 32]]


def test_memory_is_the_largest_that_was_seen_and_none_where_nothing_was_told() -> None:
    found = layers(recorder_of([4, 4]).chunks())

    assert [layer.allocated_bytes for layer in found] == [1, 101, 201]
    assert [layer.peak_bytes for layer in found] == [None, None, None]


def test_only_the_batches_that_count_are_summed_up() -> None:
    chunks = recorder_of([4, 4, 2]).chunks()
    full = np.array([True, True, False])

    assert [len(layer.durations_ns) for layer in layers(chunks, full)] == [2, 2, 2]
    assert len(layers(chunks)) == 6  # the smaller batch has other shapes
    assert layers(chunks, np.array([False])) == []


def test_a_trace_without_layers_has_none() -> None:
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FULL_TRACE)
    recorder.add(SpanKind("predict", TraceLevel.MODEL_TRACE), 0, 10, 0, batch=0)

    for chunks in (recorder.chunks(), ()):
        assert layers(chunks) == []
