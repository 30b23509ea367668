"""Every store keeps spans in the same way, with SQLite and with MongoDB's protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from inferometer.agent.tracing.recorder import (
    CHUNK_SPANS,
    COLUMNS,
    SpanChunk,
    SpanKind,
    SpanRecorder,
    SpanRole,
    TraceContext,
    TraceLevel,
)
from inferometer.evaluators.evaluation import Evaluation, TraceSummary
from inferometer.evaluators.store.documents import span_documents
from inferometer.evaluators.store.evaluation_store import (
    EvaluationFilter,
    EvaluationStore,
    evaluation_from_json,
    evaluation_to_json,
)
from inferometer.manifests.errors import StoreError
from tests.contract.store_fixtures import StoreBackend, make_evaluation, plain

KINDS = (
    SpanKind.of("predict", TraceLevel.MODEL_TRACE, batch_size=8),
    SpanKind.of(
        "свёртка.$1",
        TraceLevel.FRAMEWORK_TRACE,
        layer_index=3,
        input_shapes=("8x3x224x224", "64x3x7x7"),
        share=0.25,
        fused=True,
        flops=2**62 + 1,
        infinite=float("inf"),
    ),
)


def make_chunks(count: int) -> tuple[SpanChunk, ...]:
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FULL_TRACE)
    parent = recorder.new_id()
    for index in range(count):
        kind = KINDS[index % len(KINDS)]
        recorder.add(kind, index, index * 3, parent, batch=index // 2, thread=-index)
    return recorder.chunks()


def traced_evaluation(count: int) -> Evaluation:
    chunks = make_chunks(count)
    summary = TraceSummary(
        "ab" * 16, count, 5, ("no kernels: CPU only", "no memory"), "http://h:16686/trace/1"
    )
    return make_evaluation(trace=summary, spans=chunks, group_id="group-1")


def test_the_process_of_spans_and_their_side_of_a_call_come_back(store: EvaluationStore) -> None:
    call = SpanKind("a.Service/Method", TraceLevel.MODEL_TRACE, (("rpc.system", "grpc"),), SpanRole.SERVER)
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FULL_TRACE)
    recorder.add(call, 1, 2, 0)
    resource = (("host.name", "агент"), ("process.pid", 7), ("service.name", "inferometer-agent"))
    [theirs] = [replace(chunk, resource=resource) for chunk in recorder.chunks()]
    summary = TraceSummary("ab" * 16, 3, 0, (), None)
    evaluation = make_evaluation(trace=summary, spans=(theirs, *make_chunks(2)))
    store.save(evaluation)

    first, second = store.spans(evaluation.id)

    assert (first.kinds, first.resource) == ((call,), resource)
    assert (second.kinds, second.resource) == (KINDS, ())
    [_, of_earlier] = span_documents(evaluation.spans)
    assert "resource" not in of_earlier
    assert not any("role" in kind for kind in of_earlier["kinds"])


def columns(chunks: Iterator[SpanChunk] | tuple[SpanChunk, ...]) -> list[tuple[object, ...]]:
    return [
        (chunk.kinds, *(getattr(chunk, column).tolist() for column in COLUMNS), chunk.kind.dtype)
        for chunk in chunks
    ]


def test_spans_come_back_as_they_were_and_only_when_asked_for(store: EvaluationStore) -> None:
    evaluation = traced_evaluation(7)
    assert store.save(evaluation)

    [found] = store.find(EvaluationFilter())

    assert found.trace == evaluation.trace
    assert found.group_id == "group-1"
    assert found.spans == ()
    assert columns(store.spans(evaluation.id)) == columns(evaluation.spans)
    assert plain(found) == plain(evaluation)


def test_a_long_trace_comes_back_in_its_pieces(store: EvaluationStore) -> None:
    evaluation = traced_evaluation(2 * CHUNK_SPANS + 1)
    store.save(evaluation)

    assert [len(chunk) for chunk in store.spans(evaluation.id)] == [CHUNK_SPANS, CHUNK_SPANS, 1]


def test_an_evaluation_without_a_trace_has_no_spans(store: EvaluationStore) -> None:
    evaluation = make_evaluation()
    store.save(evaluation)

    assert store.find(EvaluationFilter())[0].trace is None
    assert list(store.spans(evaluation.id)) == []


def test_spans_of_an_unknown_evaluation_are_an_error(store: EvaluationStore) -> None:
    with pytest.raises(StoreError, match="holds no evaluation nobody"):
        list(store.spans("nobody"))


def test_a_missing_piece_of_a_trace_is_said(backend: StoreBackend, name: str) -> None:
    store = backend.open(name)
    evaluation = traced_evaluation(CHUNK_SPANS + 1)
    store.save(evaluation)
    store.close()
    with backend.documents(name) as documents:
        documents["span"].delete_many({"sequence": 1})

    store = backend.open(name)
    with pytest.raises(StoreError, match="piece 1 of 2 of its spans is missing"):
        list(store.spans(evaluation.id))
    store.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"thread": [1]}, "differ in length"),
        ({"kind": [99, 0]}, "of no kind"),
        ({"kinds": None}, "cannot be read"),
        ({"kinds": [{"name": "a", "level": "DEEP", "attributes": []}] * 2}, "cannot be read"),
    ],
)
def test_a_damaged_piece_of_a_trace_is_said(
    backend: StoreBackend, name: str, change: dict[str, object], reason: str
) -> None:
    store = backend.open(name)
    evaluation = traced_evaluation(2)
    store.save(evaluation)
    store.close()
    with backend.documents(name) as documents:
        [document] = documents["span"].find({})
        documents["span"].delete_many({})
        documents["span"].insert_one(document | change)

    store = backend.open(name)
    with pytest.raises(StoreError, match=reason):
        list(store.spans(evaluation.id))
    store.close()


def test_spans_go_through_a_file_of_json() -> None:
    evaluation = traced_evaluation(3)

    read = evaluation_from_json(evaluation_to_json(evaluation))

    assert columns(read.spans) == columns(evaluation.spans)
    assert read.trace == evaluation.trace


def test_a_file_whose_spans_are_missing_is_refused() -> None:
    content = json.loads(evaluation_to_json(traced_evaluation(3)))
    assert content["parts"].pop("span")

    with pytest.raises(StoreError, match=r"0 of its [0-9]+ documents of span are there"):
        evaluation_from_json(json.dumps(content))


def test_a_file_of_a_version_without_traces_is_read() -> None:
    evaluation = make_evaluation()
    text = evaluation_to_json(evaluation)
    old = text.replace(', "span": []', "").replace(', "trace": null', "").replace(', "group_id": null', "")
    assert old != text

    assert plain(evaluation_from_json(old)) == plain(replace(evaluation, group_id=None))


def test_the_start_of_a_span_survives_whatever_the_first_one_of_its_piece_is(store: EvaluationStore) -> None:
    [chunk] = make_chunks(3)
    starts = np.array([2**62, 5, 2**61], np.int64)
    evaluation = replace(traced_evaluation(3), spans=(replace(chunk, start_ns=starts),))
    store.save(evaluation)

    [read] = store.spans(evaluation.id)

    assert read.start_ns.tolist() == starts.tolist()
