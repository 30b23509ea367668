"""Columns of spans as OpenTelemetry objects."""

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from inferometer.agent.tracing.readable import plain, readable_spans
from inferometer.agent.tracing.recorder import SpanKind, SpanRecorder, TraceContext, TraceLevel

TRACE_ID = "8" * 32


def readable(kind: SpanKind, count: int = 1, most: int = 512, **given: int) -> list[list[ReadableSpan]]:
    """Spans of a kind, made from a chunk."""
    recorder = SpanRecorder(
        TraceContext(TRACE_ID), TraceLevel.FULL_TRACE, wall_clock=lambda: 0, clock=lambda: 0
    )
    for number in range(count):
        recorder.add(kind, 10 * number, 10 * number + 7, given.pop("parent_id", 5), **given)
    (chunk,) = recorder.chunks()
    return list(readable_spans(TRACE_ID, chunk, Resource.get_empty(), most))


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (4, [4]), (5, [4, 1]), (9, [4, 4, 1])])
def test_spans_come_in_bounded_lists_and_in_order(count: int, sizes: list[int]) -> None:
    kind = SpanKind("conv1", TraceLevel.FRAMEWORK_TRACE)

    batches = readable(kind, count, most=4)

    assert [len(batch) for batch in batches] == sizes
    times = [(span.start_time, span.end_time) for batch in batches for span in batch]
    assert times == [(10 * number, 10 * number + 7) for number in range(count)]


def test_a_span_at_the_root_has_no_parent() -> None:
    kind = SpanKind("evaluation", TraceLevel.APPLICATION_TRACE)

    ((root,),) = readable(kind, parent_id=0)
    ((below,),) = readable(kind, parent_id=5)

    assert root.parent is None
    assert below.parent is not None
    assert (below.parent.span_id, f"{below.parent.trace_id:x}") == (5, TRACE_ID)


def test_batch_and_thread_are_attributes_where_there_is_one() -> None:
    kind = SpanKind.of("read", TraceLevel.APPLICATION_TRACE, inputs=3)

    ((with_both,),) = readable(kind, batch=0, thread=9)
    ((with_none,),) = readable(kind)

    of_kind = {"inferometer.inputs": 3, "inferometer.trace_level": "APPLICATION_TRACE"}
    assert with_both.attributes == {**of_kind, "inferometer.batch": 0, "thread.id": 9}
    assert with_none.attributes == of_kind


def test_a_kind_with_an_error_has_failed() -> None:
    failed = SpanKind("read", TraceLevel.APPLICATION_TRACE, (("error.type", "InputError"),))

    ((span,),) = readable(failed)

    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "InputError")


@pytest.mark.parametrize(
    ("value", "held"),
    [
        ("8x3", "8x3"),
        (True, True),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (2**63, "9223372036854775808"),
        (1.5, 1.5),
        ((1, 2), (1, 2)),
        ((1, 2**63), ("1", "9223372036854775808")),
        ("caf\udce9.jpg", "caf?.jpg"),
        (("a", "\udce9"), ("a", "?")),
        ((), ()),
    ],
)
def test_what_the_wire_cannot_hold_becomes_text(
    value: object, held: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert plain(value) == held

    kind = SpanKind("\udce9", TraceLevel.FRAMEWORK_TRACE, (("inferometer.value", value),))
    (batch,) = readable(kind)
    encoded = encode_spans(batch).resource_spans[0].scope_spans[0].spans[0]

    assert "inferometer.value" in {pair.key for pair in encoded.attributes}
    assert not caplog.records
