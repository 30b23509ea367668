"""Spans as messages: what one end writes, the other reads."""

import json
from dataclasses import replace

import pytest

from inferometer.agent.protocol.conversion import TracePart, read_trace_part, trace_part_message
from inferometer.agent.server.calls import server_call
from inferometer.agent.tracing.recorder import SpanKind, SpanRecorder, TraceContext, TraceLevel
from inferometer.protos.inferometer.v1 import predict_pb2

KINDS = (server_call("a.Service/Method", "ipv6:%5B::1%5D:5"), SpanKind("load", TraceLevel.MODEL_TRACE))
RESOURCE = (("host.name", "агент"), ("process.pid", 7))


def written(**changes: object) -> predict_pb2.TracePart:
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FULL_TRACE)
    for kind in KINDS:
        recorder.add(kind, 1, 2, 0)
    part = TracePart(recorder.chunks(), 3, ("a note",), RESOURCE)
    return predict_pb2.TracePart.FromString(trace_part_message(replace(part, **changes)).SerializeToString())


def test_a_part_is_read_as_it_was_written() -> None:
    read = read_trace_part(written())

    [chunk] = read.chunks
    assert (chunk.kinds, len(chunk)) == (KINDS, 2)
    assert (read.dropped, read.notes, read.resource) == (3, ("a note",), RESOURCE)
    assert dict(chunk.kinds[0].attributes)["client.address"] == "::1"


def test_a_part_of_an_earlier_version_has_no_resource_and_no_calls() -> None:
    message = written(resource=())
    assert not message.resource_json
    assert "role" not in json.loads(message.spans[0].kinds_json)[1]
    assert read_trace_part(message).resource == ()


@pytest.mark.parametrize(
    "text", ["{", "7", "[7]", "[[1, 2, 3]]", '[["host.name", {}]]', '[["host.name", null]]']
)
def test_a_resource_that_is_none_is_refused(text: str) -> None:
    message = written()
    message.resource_json = text
    with pytest.raises(ValueError, match="resource"):
        read_trace_part(message)


def test_a_role_that_there_is_not_is_refused() -> None:
    message = written()
    message.spans[0].kinds_json = message.spans[0].kinds_json.replace("SERVER", "BYSTANDER")
    with pytest.raises(ValueError, match="kinds"):
        read_trace_part(message)
