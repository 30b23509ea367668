"""A trace as Chrome's events, as OTLP's JSON and as a flame graph."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from inferometer.agent.tracing.recorder import (
    SpanChunk,
    SpanKind,
    SpanRecorder,
    TraceContext,
    TraceLevel,
    span_id_text,
)
from inferometer.evaluators.traces.export import chrome_trace, flame_graph_svg, frames, otlp_json

EPOCH_NS = 1_795_224_825_379_595_668
MEASURE = SpanKind.of("measure", TraceLevel.APPLICATION_TRACE)
PREDICT = SpanKind.of("predict <&>", TraceLevel.MODEL_TRACE, batch_size=2)
CONV = SpanKind.of(
    "conv1", TraceLevel.FRAMEWORK_TRACE, layer_index=0, input_shapes=("2x3x8x8",), share=float("nan"), on=True
)
READ = SpanKind.of("read", TraceLevel.APPLICATION_TRACE)


def recorder_of_two_batches() -> SpanRecorder:
    """measure [0, 100] > predict [10, 40] and [50, 90] > conv1 in each; reads beside them on two threads."""
    recorder = SpanRecorder(
        TraceContext("ab" * 16, 7), TraceLevel.FULL_TRACE, clock=lambda: 0, wall_clock=lambda: EPOCH_NS
    )
    measure = recorder.new_id()
    for batch, (start, end) in enumerate([(10, 40), (50, 90)]):
        predict = recorder.add(PREDICT, start, end, measure, batch=batch)
        recorder.add(CONV, start + 1, end - 1, predict, batch=batch)
        recorder.add(READ, 0, 9, measure, thread=batch + 1)
    recorder.add(MEASURE, 0, 100, 7, span_id=measure)
    return recorder


def chrome(chunks: tuple[SpanChunk, ...]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads("".join(chrome_trace(chunks, "inferometer")))
    return content


def test_chrome_events_have_the_times_of_the_spans_to_the_nanosecond() -> None:
    content = chrome(recorder_of_two_batches().chunks())

    events = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert content["baseTimeNanoseconds"] == EPOCH_NS
    assert [(e["name"], e["ts"], e["dur"], e["tid"]) for e in events][:3] == [
        ("predict <&>", 0.01, 0.03, 1),
        ("conv1", 0.011, 0.028, 1),
        ("read", 0.0, 0.009, 2),
    ]
    assert events[1]["args"]["batch"] == 0
    assert events[1]["args"]["input_shapes"] == ["2x3x8x8"]
    assert events[1]["args"]["parent_id"] == events[0]["args"]["span_id"]
    assert events[1]["cat"] == "FRAMEWORK_TRACE"


def test_chrome_events_of_one_thread_nest() -> None:
    events = [e for e in chrome(recorder_of_two_batches().chunks())["traceEvents"] if e["ph"] == "X"]

    for one in events:
        assert one["dur"] >= 0
        for other in events:
            if one is other or (one["pid"], one["tid"]) != (other["pid"], other["tid"]):
                continue
            begin, end = one["ts"], one["ts"] + one["dur"]
            start, stop = other["ts"], other["ts"] + other["dur"]
            apart = end <= start + 1e-9 or stop <= begin + 1e-9
            inside = (begin >= start - 1e-9 and end <= stop + 1e-9) or (
                start >= begin - 1e-9 and stop <= end + 1e-9
            )
            assert apart or inside, (one, other)


def test_processes_of_one_trace_are_told_apart() -> None:
    near, far = recorder_of_two_batches(), recorder_of_two_batches()
    near.add_chunk(far.chunks()[0])

    content = chrome(near.chunks())

    assert len({event["pid"] for event in content["traceEvents"]}) == 2
    names = {e["args"]["name"] for e in content["traceEvents"] if e["name"] == "process_name"}
    assert names == {"inferometer (1)", "inferometer (2)"}


def test_threads_and_streams_have_names_and_numbers_that_viewers_take() -> None:
    recorder = recorder_of_two_batches()
    for thread in (-8, -1, 2**40):
        recorder.add(CONV, 0, 1, 7, thread=thread)

    events = chrome(recorder.chunks())["traceEvents"]

    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events} == names.keys()
    assert all(0 < tid < 2**31 for _, tid in names)
    assert [pid == tid for pid, tid in names] == [name == "main" for name in names.values()]
    assert sorted(names.values()) == sorted(
        ["main", "thread 1", "thread 2", "stream 7", "stream 0", f"thread {2**40}"]
    )


def test_a_trace_without_spans_is_still_whole() -> None:
    assert chrome(()) == {"displayTimeUnit": "ms", "traceEvents": [], "baseTimeNanoseconds": 0}
    assert json.loads("".join(otlp_json((), "ab" * 16, {})))["resourceSpans"]
    assert "no spans" in flame_graph_svg(tuple, "nothing")


def test_otlp_json_is_what_a_collector_reads() -> None:
    chunks = recorder_of_two_batches().chunks()

    text = "".join(otlp_json(chunks, "ab" * 16, {"service.name": "inferometer"}))

    # OTLP writes ids in hexadecimal where protobuf's JSON has base64, which this parser takes them for
    request = json_format.Parse(text, ExportTraceServiceRequest())
    [resource] = request.resource_spans
    assert resource.resource.attributes[0].value.string_value == "inferometer"
    spans = resource.scope_spans[0].spans
    assert [span.name for span in spans] == [
        "predict <&>",
        "conv1",
        "read",
        "predict <&>",
        "conv1",
        "read",
        "measure",
    ]
    assert spans[1].start_time_unix_nano == EPOCH_NS + 11
    assert spans[1].end_time_unix_nano == EPOCH_NS + 39
    attributes = {a.key: a.value for a in spans[1].attributes}
    assert attributes["inferometer.layer_index"].int_value == 0
    assert attributes["inferometer.on"].bool_value is True
    assert attributes["inferometer.share"].double_value != attributes["inferometer.share"].double_value
    assert attributes["inferometer.input_shapes"].array_value.values[0].string_value == "2x3x8x8"
    assert attributes["inferometer.trace_level"].string_value == "FRAMEWORK_TRACE"
    content = json.loads(text)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert content[0]["traceId"] == "ab" * 16
    assert content[1]["parentSpanId"] == content[0]["spanId"]
    assert content[-1]["parentSpanId"] == span_id_text(7)


def test_otlp_json_says_what_a_collector_would_get() -> None:
    recorder = SpanRecorder(TraceContext("ab" * 16, 7), TraceLevel.FULL_TRACE)
    odd = SpanKind.of("conv\udcff", TraceLevel.FRAMEWORK_TRACE, big=2**70, bad=("\udcff",))
    recorder.add(odd, 0, 1, 7)
    recorder.add(odd, 0, 1, 7, batch=3, thread=5)

    text = "".join(otlp_json(recorder.chunks(), "ab" * 16, {}))

    spans = json.loads(text.encode())["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [span["name"] for span in spans] == ["conv?"] * 2
    shared = {
        "inferometer.big": {"stringValue": str(2**70)},
        "inferometer.bad": {"arrayValue": {"values": [{"stringValue": "?"}]}},
        "inferometer.trace_level": {"stringValue": "FRAMEWORK_TRACE"},
    }
    own = {"inferometer.batch": {"intValue": "3"}, "thread.id": {"intValue": "5"}}
    assert [{a["key"]: a["value"] for a in span["attributes"]} for span in spans] == [shared, shared | own]


def test_frames_sum_up_what_has_the_same_names_above_it() -> None:
    top = frames(recorder_of_two_batches().chunks)

    [measure] = top.children
    assert (measure.name, measure.count, measure.total_ns) == ("measure", 1, 100)
    assert [(f.name, f.count, f.total_ns) for f in measure.children] == [
        ("read", 2, 18),
        ("predict <&>", 2, 70),
    ]
    [conv] = measure.children[1].children
    assert (conv.name, conv.count, conv.total_ns) == ("conv1", 2, 66)


def test_frames_find_parents_in_other_chunks() -> None:
    recorder = recorder_of_two_batches()
    recorder.chunks()  # cuts here
    other = recorder_of_two_batches()
    parent = int(recorder.chunks()[0].span_id[0])
    other.add(CONV, 12, 14, parent)

    top = frames(lambda: (*other.chunks(), *recorder.chunks()))

    assert sum(frame.total_ns for frame in top.children) == 200
    assert sum(f.count for m in top.children for p in m.children for f in p.children) == 5


def test_frames_that_ran_side_by_side_are_as_wide_as_what_lies_below() -> None:
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FULL_TRACE)
    parent = recorder.add(MEASURE, 0, 10, 0)
    for thread in range(3):
        recorder.add(READ, 0, 10, parent, thread=thread)

    assert frames(recorder.chunks).width_ns == 30


def test_a_flame_graph_is_a_picture_that_needs_nothing_else() -> None:
    svg = flame_graph_svg(recorder_of_two_batches().chunks, "a <title>")

    root = ElementTree.fromstring(svg)
    titles = [e.text for e in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0] == "measure: 0.000 ms in 1 spans, 100.00 %"
    assert any(title and title.startswith("predict <&>: ") for title in titles)
    assert [text for text in re.findall(r"\w+://[^\s\"]*", svg) if "w3.org" not in text] == []
    assert "href" not in svg
    assert "src" not in svg
    assert svg.count("<script>") == 1
    boxes = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("rx")]
    assert float(boxes[0].get("width", 0)) == pytest.approx(1180)
