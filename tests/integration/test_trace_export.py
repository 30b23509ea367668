"""Traces over real sockets: every kind of collector decodes the same tree of spans."""

import random
from dataclasses import replace

import pytest
from trace_collectors import COLLECTORS, HOST, Seen, SeenSpan

from inferometer.agent import __version__
from inferometer.agent.tracing.exporting import TraceAddress, TraceExport
from inferometer.agent.tracing.recorder import SpanKind, SpanRecorder, TraceContext, TraceLevel

PATIENT_S = 60.0
PREDICT = SpanKind.of("predict", TraceLevel.MODEL_TRACE, batch_size=8)
LAYER = SpanKind.of(
    "conv1 · Faltung",
    TraceLevel.FRAMEWORK_TRACE,
    layer_index=3,
    layer_type="Convolution",
    memory_share=0.25,
    fused=True,
    input_shapes=("8x3x224x224", "64x3x7x7"),
    allocated_bytes=2**40,
)
FAILED = SpanKind("postprocess", TraceLevel.APPLICATION_TRACE, (("error.type", "PredictionError"),))
KINDS = pytest.mark.parametrize("scheme", COLLECTORS, ids=lambda scheme: scheme.strip(":/") or "grpc")


@pytest.fixture
def recorder() -> SpanRecorder:
    return SpanRecorder(TraceContext("f" * 30 + "07"), TraceLevel.FULL_TRACE)


def record_tree(recorder: SpanRecorder) -> None:
    """An evaluation of three batches, from another chunk than its layers."""
    start_ns = recorder.clock()
    root = recorder.new_id()
    for batch in range(3):
        at_ns = start_ns + 1_000_000 * batch
        predict = recorder.add(PREDICT, at_ns, at_ns + 900_000, root, batch=batch, thread=140_000_000_000_001)
        for layer in range(2):
            recorder.add(LAYER, at_ns + layer * 400_500, at_ns + layer * 400_500 + 333, predict, batch=batch)
        recorder.chunks()
        recorder.add(FAILED, at_ns + 900_000, at_ns + 950_000, root, batch=batch)
    evaluation = SpanKind.of("evaluation", TraceLevel.APPLICATION_TRACE)
    recorder.add(evaluation, start_ns, start_ns + 4_000_000, recorder.context.span_id, span_id=root)


def expected(recorder: SpanRecorder) -> dict[int, SeenSpan]:
    """What a collector must see, taken from the chunks one value at a time."""
    spans = {}
    for chunk in recorder.chunks():
        for row in range(len(chunk)):
            kind = chunk.kinds[chunk.kind[row]]
            attributes = {**dict(kind.attributes), "inferometer.trace_level": kind.level.name}
            if chunk.batch[row] >= 0:
                attributes["inferometer.batch"] = chunk.batch[row]
            if chunk.thread[row]:
                attributes["thread.id"] = chunk.thread[row]
            spans[int(chunk.span_id[row])] = SeenSpan(
                kind.name,
                recorder.context.trace_id,
                chunk.parent_id[row],
                chunk.start_ns[row],
                chunk.duration_ns[row],
                attributes,
                "inferometer",
                kind is FAILED,
            )
    return spans


def in_microseconds(span: SeenSpan) -> SeenSpan:
    """A span as Jaeger's format holds it."""
    rounded = [(ns + 500) // 1000 * 1000 for ns in (span.start_ns, span.duration_ns)]
    return replace(span, start_ns=rounded[0], duration_ns=rounded[1])


def as_held(scheme: str, spans: dict[int, SeenSpan]) -> dict[int, SeenSpan]:
    """What a protocol makes of spans."""
    if not scheme.startswith(("jaeger", "zipkin")):
        return spans
    held = {span_id: in_microseconds(span) for span_id, span in spans.items()}
    if scheme.startswith("jaeger"):  # which has no lists: it gets JSON
        lists = {"inferometer.input_shapes": '["8x3x224x224", "64x3x7x7"]'}
        return {
            span_id: replace(
                span, attributes={key: lists.get(key, value) for key, value in span.attributes.items()}
            )
            for span_id, span in held.items()
        }
    return {span_id: replace(span, duration_ns=max(1000, span.duration_ns)) for span_id, span in held.items()}


def open_export(scheme: str, port: int) -> TraceExport:
    return TraceExport.open(TraceAddress.parse(f"{scheme}{HOST}:{port}"))


@KINDS
def test_every_collector_sees_the_span_tree_that_was_recorded(scheme: str, recorder: SpanRecorder) -> None:
    record_tree(recorder)
    wanted = expected(recorder)
    seen = Seen()

    with COLLECTORS[scheme](seen) as port:
        export = open_export(scheme, port)
        export.send(recorder.context.trace_id, recorder.chunks())
        report = export.close(PATIENT_S)
        seen.wait_for(lambda: len(seen.spans) >= len(wanted))

    assert len(wanted) == 13
    assert seen.spans == as_held(scheme, wanted)
    assert (report.delivered, report.undelivered, report.reason) == (13, 0, "")


@KINDS
def test_every_collector_is_told_what_program_the_spans_come_from(
    scheme: str, recorder: SpanRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
    record_tree(recorder)
    seen = Seen()

    with COLLECTORS[scheme](seen) as port:
        export = open_export(scheme, port)
        export.send(recorder.context.trace_id, recorder.chunks())
        export.close(PATIENT_S)
        seen.wait_for(lambda: bool(seen.resources))

    assert seen.resources[0]["service.name"] == "inferometer"
    assert seen.resources[0]["service.version"] == __version__
    assert seen.resources[0]["host.name"]
    assert len(seen.resources[0]["service.instance.id"]) == 36
    assert isinstance(seen.resources[0]["process.pid"], int)
    assert seen.resources[0]["deployment.environment.name"] == "lab"


@KINDS
def test_spans_of_two_traces_keep_their_traces(scheme: str) -> None:
    recorders = [SpanRecorder(TraceContext.new(), TraceLevel.FULL_TRACE) for _ in range(2)]
    seen = Seen()

    with COLLECTORS[scheme](seen) as port:
        export = open_export(scheme, port)
        for recorder in recorders:
            record_tree(recorder)
            export.send(recorder.context.trace_id, recorder.take())
        export.close(PATIENT_S)
        seen.wait_for(lambda: len(seen.spans) == 26)

    traces = [span.trace_id for span in seen.spans.values()]
    assert sorted(set(traces)) == sorted(recorder.context.trace_id for recorder in recorders)
    assert traces.count(traces[0]) == 13


@pytest.mark.parametrize("scheme", ["", "http://"], ids=["grpc", "http"])
def test_the_spans_of_three_chunks_all_arrive_in_bounded_batches(
    scheme: str, recorder: SpanRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferometer.agent.tracing.recorder.CHUNK_SPANS", 2_000)
    count = 2 * 2_000 + 700  # a whole number neither of chunks nor of batches
    bare = SpanKind("layer", TraceLevel.FRAMEWORK_TRACE)
    for number in range(count):
        recorder.add(bare, number, number + 1, 7, batch=number)
    seen = Seen()

    with COLLECTORS[scheme](seen) as port:
        export = open_export(scheme, port)
        sent = recorder.chunks()
        export.send(recorder.context.trace_id, sent)
        report = export.close(PATIENT_S)

    assert len(sent) == 3
    assert (report.delivered, report.undelivered) == (count, 0)
    assert sorted(span.attributes["inferometer.batch"] for span in seen.spans.values()) == list(range(count))
    assert max(seen.sizes) == 512


def test_packets_over_udp_are_filled_but_never_too_large(recorder: SpanRecorder) -> None:
    kinds = [
        SpanKind.of("layer", TraceLevel.FRAMEWORK_TRACE, input_shapes="8x3x224x224 " * repeats)
        for repeats in (1, 100, 500)
    ]
    chosen = random.Random(1)
    seen = Seen()

    with COLLECTORS["jaeger://"](seen) as port:
        export = open_export("jaeger://", port)
        for sent in range(40, 440, 40):
            for number in range(40):
                recorder.add(chosen.choice(kinds), number, number + 1, 7)
            export.send(recorder.context.trace_id, recorder.take())
            # one after the other: a system drops packets that come faster than they are read
            seen.wait_for(lambda sent=sent: len(seen.spans) == sent)
        report = export.close(PATIENT_S)

    # the reader asserts the size of each packet; all together are of 1 MB
    assert (report.delivered, report.undelivered) == (400, 0)
    assert 16 <= len(seen.sizes) <= 40


def test_a_span_larger_than_a_packet_is_counted_and_the_others_are_sent(recorder: SpanRecorder) -> None:
    for repeats in (1, 10_000, 1):
        kind = SpanKind.of("layer", TraceLevel.FRAMEWORK_TRACE, input_shapes="8x3x224x224 " * repeats)
        recorder.add(kind, 1, 2, 7)
    seen = Seen()

    with COLLECTORS["jaeger://"](seen) as port:
        export = open_export("jaeger://", port)
        export.send(recorder.context.trace_id, recorder.chunks())
        report = export.close(PATIENT_S)
        seen.wait_for(lambda: len(seen.spans) == 2)

    assert (report.delivered, report.undelivered) == (2, 1)
    assert "larger than a packet" in report.reason


def test_a_chunk_of_one_span_that_is_too_large_does_not_hold_up_the_next(recorder: SpanRecorder) -> None:
    seen = Seen()

    with COLLECTORS["jaeger://"](seen) as port:
        export = open_export("jaeger://", port)
        for repeats in (10_000, 1):
            kind = SpanKind.of("layer", TraceLevel.FRAMEWORK_TRACE, input_shapes="8x3x224x224 " * repeats)
            recorder.add(kind, 1, 2, 7)
            export.send(recorder.context.trace_id, recorder.take())
        seen.wait_for(lambda: len(seen.spans) == 1)
        report = export.close(PATIENT_S)

    assert (report.delivered, report.undelivered) == (1, 1)
    assert "larger than a packet" in report.reason
