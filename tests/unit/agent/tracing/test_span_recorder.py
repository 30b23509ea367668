"""The recorder and its scopes: what a trace keeps."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.agent.tracing import recorder as recorder_module
from inferometer.agent.tracing.recorder import (
    CHUNK_SPANS,
    NO_BATCH,
    SpanKind,
    SpanRecorder,
    TraceContext,
    TraceLevel,
    TraceScope,
    traced,
)
from inferometer.manifests.errors import ConfigurationError

KIND = SpanKind.of("predict", TraceLevel.MODEL_TRACE, batch_size=8)


def ticking(*times: int) -> Iterator[int]:
    yield from times


def new_recorder(limit: int = 1000, *times: int) -> SpanRecorder:
    clock = ticking(0, *times)
    return SpanRecorder(
        TraceContext.new(),
        TraceLevel.FULL_TRACE,
        limit=limit,
        clock=lambda: next(clock),
        wall_clock=lambda: 1_000_000,
    )


def test_a_span_keeps_what_it_is_given_on_the_clock_since_1970() -> None:
    recorder = new_recorder()

    span_id = recorder.add(KIND, 10, 25, 7, batch=3, thread=42)

    [chunk] = recorder.chunks()
    assert chunk.kinds == (KIND,)
    assert len(chunk) == len(recorder) == 1
    assert chunk.span_id.tolist() == [span_id]
    assert chunk.parent_id.tolist() == [7]
    assert chunk.start_ns.tolist() == [1_000_010]
    assert chunk.duration_ns.tolist() == [15]
    assert (chunk.batch.tolist(), chunk.thread.tolist()) == ([3], [42])


def test_equal_kinds_are_kept_once() -> None:
    recorder = new_recorder()
    for _ in range(3):
        recorder.add(
            SpanKind.of("conv", TraceLevel.FRAMEWORK_TRACE, layer_index=1, layer_type="Conv"), 0, 1, 0
        )
    recorder.add(SpanKind.of("conv", TraceLevel.FRAMEWORK_TRACE, layer_type="Conv", layer_index=2), 0, 1, 0)

    [chunk] = recorder.chunks()

    assert chunk.kind.tolist() == [0, 0, 0, 1]
    assert [kind.attribute("layer_index") for kind in chunk.kinds] == [1, 2]
    assert chunk.kinds[0].attribute("none") is None


def test_many_spans_are_cut_into_chunks_that_lose_none() -> None:
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FULL_TRACE)
    count = 2 * CHUNK_SPANS + 5

    ids = [recorder.add(KIND, start, start + 1, 0) for start in range(count)]

    chunks = recorder.chunks()
    assert [len(chunk) for chunk in chunks] == [CHUNK_SPANS, CHUNK_SPANS, 5]
    assert np.concatenate([chunk.span_id for chunk in chunks]).tolist() == ids
    assert len(set(ids)) == count
    assert min(ids) > 0


def test_kinds_with_long_attributes_cut_a_chunk_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "_KIND_CHARACTERS_PER_CHUNK", 100)
    recorder = new_recorder()
    for index in range(4):
        recorder.add(SpanKind.of("x" * 60, TraceLevel.MODEL_TRACE, index=index), 0, 1, 0)

    assert [len(chunk) for chunk in recorder.chunks()] == [2, 2]


def test_what_is_beyond_the_limit_is_counted() -> None:
    recorder = new_recorder(limit=2)
    for _ in range(5):
        recorder.add(KIND, 0, 1, 0)
    other = new_recorder()
    other.add(KIND, 0, 1, 0)
    recorder.add_chunk(other.chunks()[0])

    assert len(recorder) == 2
    assert recorder.dropped == 4


def test_taking_forgets_and_chunks_of_another_process_are_kept_as_they_are() -> None:
    recorder, other = new_recorder(), new_recorder()
    other.add(KIND, 5, 6, 9)
    [received] = other.take()
    assert other.take() == ()

    recorder.add_chunk(received)

    assert recorder.chunks() == (received,)


def test_recorders_of_one_trace_give_different_ids_from_several_threads() -> None:
    context = TraceContext.new()
    recorders = [SpanRecorder(context, TraceLevel.FULL_TRACE) for _ in range(2)]
    ids: list[int] = []

    def draw(recorder: SpanRecorder) -> None:
        ids.extend([recorder.new_id() for _ in range(500)])

    threads = [threading.Thread(target=draw, args=(recorder,)) for recorder in recorders * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(ids)) == 2000


def test_scopes_nest_and_record_also_when_an_error_leaves_them() -> None:
    recorder = new_recorder(1000, 10, 20, 30, 40)
    outer = SpanKind("outer", TraceLevel.APPLICATION_TRACE)

    def lose() -> None:
        with TraceScope.top(recorder).span(outer) as scope:
            with scope.span(KIND):
                pass
            raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        lose()

    [chunk] = recorder.chunks()
    assert [chunk.kinds[place].name for place in chunk.kind] == ["predict", "outer"]
    assert chunk.parent_id[0] == chunk.span_id[1]
    assert chunk.parent_id[1] == 0
    assert chunk.duration_ns.tolist() == [10, 30]
    assert chunk.batch.tolist() == [NO_BATCH, NO_BATCH]


def test_without_a_scope_nothing_is_traced() -> None:
    with traced(None, KIND) as scope:
        assert scope is None


def test_a_note_is_kept_once() -> None:
    recorder = new_recorder()
    for text in ("no kernels: CPU only", "no memory", "no kernels: CPU only"):
        recorder.note(text)

    assert recorder.notes == ("no kernels: CPU only", "no memory")


@given(st.integers(1, 2**128 - 1), st.integers(-(2**63), 2**63 - 1).filter(bool), st.booleans())
def test_a_context_survives_its_header(trace: int, span: int, sampled: bool) -> None:
    context = TraceContext(f"{trace:032x}", span, sampled)

    assert TraceContext.parse(context.traceparent) == context


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-0-0-01",
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'0' * 16}-01",
        f"ff-{'1' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'1' * 16}-01-more",
        f"00-{'A' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'1' * 16}-0x",
    ],
)
def test_a_header_that_is_none_is_refused(header: str) -> None:
    with pytest.raises(ConfigurationError, match="traceparent"):
        TraceContext.parse(header)


def test_a_header_of_a_later_version_may_hold_more() -> None:
    assert TraceContext.parse(f"01-{'1' * 32}-{'2' * 16}-00-more") == TraceContext(
        "1" * 32, 0x2222222222222222, sampled=False
    )
