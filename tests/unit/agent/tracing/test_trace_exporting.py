"""The export: bounds, counts and the end, with a scripted collector."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from inferometer.agent.tracing.exporting import (
    BATCH_SPANS,
    Collector,
    DeliveryError,
    ExportReport,
    TraceAddress,
    TraceExport,
    innermost,
)
from inferometer.agent.tracing.recorder import SpanChunk, SpanKind, SpanRecorder, TraceContext, TraceLevel

ADDRESS = TraceAddress.parse("collector")
TRACE_ID = "5" * 32
PATIENT_S = 60.0


class ScriptedCollector(Collector):
    """Does for each delivery what the next step says; after the last one, takes everything."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        self.span_resource = Resource.get_empty()
        self.sizes: list[int] = []
        self.closed = threading.Event()
        self.reached = threading.Event()
        self._steps = list(steps)

    def deliver(self, spans: Sequence[ReadableSpan]) -> None:
        self.sizes.append(len(spans))
        self.reached.set()
        if self._steps:
            self._steps.pop(0)()

    def close(self) -> None:
        self.closed.set()


class HangingCollector(ScriptedCollector):
    """Hangs, after the given steps, until it is closed."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        super().__init__(*steps, self._hang)

    def _hang(self) -> None:
        assert self.closed.wait(PATIENT_S)
        raise DeliveryError("cancelled", again=True)


def raising(error: Exception) -> Callable[[], None]:
    def step() -> None:
        raise error

    return step


def chunk(count: int) -> SpanChunk:
    recorder = SpanRecorder(TraceContext(TRACE_ID), TraceLevel.FULL_TRACE)
    kind = SpanKind("conv1", TraceLevel.FRAMEWORK_TRACE)
    for number in range(count):
        recorder.add(kind, number, number + 1, 5)
    (made,) = recorder.chunks()
    return made


def from_elsewhere(count: int) -> SpanChunk:
    """A chunk of another process, which goes by itself."""
    return replace(chunk(count), resource=(("service.name", "elsewhere"),))


@pytest.fixture
def hanging() -> Iterator[HangingCollector]:
    collector = HangingCollector()
    yield collector
    collector.close()


def test_nothing_sent_is_nothing_lost() -> None:
    collector = ScriptedCollector()

    report = TraceExport(ADDRESS, collector).close()

    assert report == ExportReport(ADDRESS, 0, 0)
    assert collector.closed.is_set()
    assert collector.sizes == []


def test_spans_are_delivered_in_bounded_batches() -> None:
    collector = ScriptedCollector()
    export = TraceExport(ADDRESS, collector)

    export.send(TRACE_ID, [chunk(BATCH_SPANS + 1), chunk(3)])

    assert export.close(PATIENT_S) == ExportReport(ADDRESS, BATCH_SPANS + 4, 0)
    assert collector.sizes == [BATCH_SPANS, 1, 3]


def test_small_chunks_of_one_process_go_together() -> None:
    collector = ScriptedCollector()
    export = TraceExport(ADDRESS, collector)

    chunks = [chunk(1), chunk(2), from_elsewhere(3), from_elsewhere(BATCH_SPANS), chunk(4)]
    export.send(TRACE_ID, chunks)

    assert export.close(PATIENT_S) == ExportReport(ADDRESS, 10 + BATCH_SPANS, 0)
    assert collector.sizes == [3, 3, BATCH_SPANS, 4]


def test_one_who_waits_goes_on_when_there_is_room_or_nothing_is_taken(hanging: HangingCollector) -> None:
    export = TraceExport(ADDRESS, ScriptedCollector())
    export.send(TRACE_ID, [chunk(5)])
    assert export.wait_below(1, PATIENT_S)
    stuck = TraceExport(ADDRESS, hanging)
    stuck.send(TRACE_ID, [chunk(5)])
    assert not stuck.wait_below(5, 0.01)
    assert stuck.wait_below(6, 0.01)
    assert stuck.close(0.01).undelivered == 5
    export.close()


def test_sending_returns_while_the_collector_hangs(hanging: HangingCollector) -> None:
    export = TraceExport(ADDRESS, hanging)

    export.send(TRACE_ID, [chunk(1)])
    assert hanging.reached.wait(PATIENT_S)
    export.send(TRACE_ID, [chunk(1)])

    assert export.close(0.01) == ExportReport(ADDRESS, 0, 2, "no answer within 0.01 s")
    assert hanging.closed.is_set()


def test_a_collector_that_was_given_up_is_left_alone(hanging: HangingCollector) -> None:
    before = set(threading.enumerate())
    export = TraceExport(ADDRESS, hanging)
    export.send(TRACE_ID, [chunk(1), from_elsewhere(1)])
    assert hanging.reached.wait(PATIENT_S)
    (worker,) = set(threading.enumerate()) - before

    export.close(0.01)
    worker.join(PATIENT_S)

    assert not worker.is_alive()
    assert hanging.sizes == [1]


def test_what_waits_behind_a_refusal_has_its_reason() -> None:
    collector = HangingCollector(raising(DeliveryError("HTTP 400")))
    export = TraceExport(ADDRESS, collector)

    export.send(TRACE_ID, [chunk(3), from_elsewhere(4)])

    assert export.close(0.2) == ExportReport(ADDRESS, 0, 7, "HTTP 400")


def test_what_does_not_fit_into_the_queue_is_counted(hanging: HangingCollector) -> None:
    export = TraceExport(ADDRESS, hanging, limit=10)

    export.send(TRACE_ID, [chunk(6), chunk(5), chunk(4), chunk(1)])
    report = export.close(0.01)

    assert report == ExportReport(ADDRESS, 0, 16, "no answer within 0.01 s")


def test_most_of_what_is_lost_gives_the_reason(hanging: HangingCollector) -> None:
    export = TraceExport(ADDRESS, hanging, limit=10)

    export.send(TRACE_ID, [chunk(1), chunk(1000)])

    assert export.close(0.01) == ExportReport(ADDRESS, 0, 1001, "more than 10 spans were waiting")


def test_the_queue_takes_more_when_it_has_been_delivered() -> None:
    collector = ScriptedCollector()
    export = TraceExport(ADDRESS, collector, limit=10)
    export.send(TRACE_ID, [chunk(10)])
    assert export.wait_below(1, PATIENT_S)
    export.send(TRACE_ID, [chunk(10)])

    assert export.close(PATIENT_S) == ExportReport(ADDRESS, 20, 0)


def test_the_end_waits_as_long_as_the_collector_takes_spans() -> None:
    now_s = [0.0]

    def slow() -> None:
        now_s[0] += 9.0

    export = TraceExport(ADDRESS, ScriptedCollector(*[slow] * 20), clock=lambda: now_s[0])

    export.send(TRACE_ID, [chunk(20 * BATCH_SPANS)])

    assert export.close(10.0) == ExportReport(ADDRESS, 20 * BATCH_SPANS, 0)


def test_a_batch_that_may_go_again_goes_again() -> None:
    unreachable = raising(DeliveryError("nobody there", again=True))
    collector = ScriptedCollector(unreachable, unreachable)
    export = TraceExport(ADDRESS, collector)

    export.send(TRACE_ID, [chunk(7)])

    assert export.close(PATIENT_S) == ExportReport(ADDRESS, 7, 0)
    assert collector.sizes == [7, 7, 7]


@pytest.mark.parametrize(
    ("error", "delivered", "reason"),
    [
        (DeliveryError("HTTP 400"), 3, "HTTP 400"),
        (DeliveryError("rejected", lost=2), 8, "rejected"),
        (DeliveryError("rejected", lost=99), 3, "rejected"),
        (RuntimeError("a defect\nof a library"), 3, "RuntimeError: a defect of a library"),
    ],
)
def test_a_batch_that_is_refused_is_counted_and_the_next_one_goes(
    error: Exception, delivered: int, reason: str
) -> None:
    export = TraceExport(ADDRESS, ScriptedCollector(raising(error)))

    export.send(TRACE_ID, [chunk(7), from_elsewhere(3)])

    assert export.close(PATIENT_S) == ExportReport(ADDRESS, delivered, 10 - delivered, reason)


def test_the_reason_of_an_unreachable_collector_is_its_own() -> None:
    steps = [raising(DeliveryError("Connection refused", again=True))] * 1000
    export = TraceExport(ADDRESS, ScriptedCollector(*steps))

    export.send(TRACE_ID, [chunk(1), chunk(1)])

    assert export.close(0.1) == ExportReport(ADDRESS, 0, 2, "Connection refused")


def test_a_chunk_that_cannot_be_read_does_not_hold_up_the_others() -> None:
    broken = chunk(4)
    broken = replace(broken, kind=broken.kind + 9)
    export = TraceExport(ADDRESS, ScriptedCollector())

    export.send(TRACE_ID, [broken, chunk(3)])

    assert export.close(PATIENT_S) == ExportReport(ADDRESS, 3, 4, "IndexError: list index out of range")


def test_closing_again_tells_the_same_and_what_was_sent_since_is_counted() -> None:
    export = TraceExport(ADDRESS, ScriptedCollector())
    export.send(TRACE_ID, [chunk(2)])
    first = export.close(PATIENT_S)

    assert export.close() == first
    export.send(TRACE_ID, [chunk(5)])

    assert export.close() == ExportReport(ADDRESS, 2, 5, "the export was closed")


def test_a_collector_that_cannot_even_be_closed_fails_nothing() -> None:
    collector = ScriptedCollector()
    collector.close = raising(RuntimeError("broken"))

    assert TraceExport(ADDRESS, collector).close() == ExportReport(ADDRESS, 0, 0)


def test_a_user_who_does_not_want_to_wait_ends_the_connection(hanging: HangingCollector) -> None:
    impatient = iter([0.0])  # the clock is read for the first time when the export is made

    def clock() -> float:
        try:
            return next(impatient)
        except StopIteration:
            raise KeyboardInterrupt from None

    export = TraceExport(ADDRESS, hanging, clock=clock)
    export.send(TRACE_ID, [chunk(1)])

    with pytest.raises(KeyboardInterrupt):
        export.close()

    assert hanging.closed.is_set()


@pytest.mark.parametrize(
    ("address", "lost", "line"),
    [
        ("host", 0, "1,500 spans delivered to host:4317 (OTLP/gRPC)"),
        ("host", 500, "500 of 2,000 spans were not delivered to host:4317 (OTLP/gRPC): refused"),
        (
            "jaeger://host",
            0,
            "1,500 spans sent to jaeger://host:6831 (Jaeger Thrift over UDP); UDP does not say whether they "
            "arrived",
        ),
    ],
)
def test_a_report_is_one_line(address: str, lost: int, line: str) -> None:
    report = ExportReport(TraceAddress.parse(address), 1500, lost, "refused" if lost else "")

    assert str(report) == line


def test_a_reason_is_one_line_of_bounded_length() -> None:
    assert DeliveryError(" two\nlines ").reason == "two lines"
    assert len(DeliveryError("x" * 1000).reason) < 300
    assert DeliveryError("").reason


def test_the_innermost_error_of_the_system_is_what_is_said() -> None:
    wrapped = RuntimeError("HTTPConnectionPool(host=…): Max retries exceeded")
    wrapped.__cause__ = ValueError("in between")
    wrapped.__cause__.__context__ = ConnectionRefusedError(111, "Connection refused")

    assert innermost(wrapped) == "Connection refused"
    assert innermost(ValueError("of its own")) == "of its own"
    assert innermost(TimeoutError()) == "TimeoutError"
