"""Some queries of a run in a trace: which, and what is known of each."""

from collections.abc import Callable

import numpy as np
import pytest

from inferometer.agent.tracing.recorder import (
    SpanKind,
    SpanRecorder,
    SpanRole,
    TraceContext,
    TraceLevel,
    TraceScope,
    client_call,
)
from inferometer.evaluators.load.load_session import LoadTrace, QuerySample
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries

BEGAN_NS = 5_000


def column(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def run() -> LoadRun:
    """Four queries: one that was answered, one that failed, one without an answer, and one not sent."""
    queries = Queries(
        scheduled_ns=column(0, 100, 200, 300),
        sent_ns=column(10, 110, 210, -1),
        done_ns=column(90, 150, -1, -1),
        outcome=column(Outcome.ANSWERED, Outcome.FAILED, Outcome.TIMED_OUT, Outcome.WAITING),
        queue_ns=column(20, -1, -1, -1),
        predict_ns=column(40, -1, -1, -1),
        batch_size=column(2, 0, 0, 0),
        batch_ns=column(5, -1, -1, -1),
    )
    return LoadRun(7.0, "constant", 0, "", queries, began_ns=BEGAN_NS)


class Stamping:
    """A target whose calls carry the trace."""

    sample: QuerySample | None = None

    def call_of(self, query: int) -> SpanKind:
        return client_call("a.Service/Method", "host", 1)

    def stamp(self, sample: QuerySample | None) -> None:
        self.sample = sample


@pytest.fixture
def recorder() -> SpanRecorder:
    return SpanRecorder(TraceContext("a" * 32), TraceLevel.MODEL_TRACE, clock=lambda: 0, wall_clock=lambda: 0)


@pytest.fixture
def spans(recorder: SpanRecorder) -> Callable[[object], list[tuple[str, str, int, int, SpanKind]]]:
    """Records a run of a target with every query, and gives name, parent's name, begin and end."""

    def record(target: object) -> list[tuple[str, str, int, int, SpanKind]]:
        trace = LoadTrace(TraceScope.top(recorder), 1.0, 0)
        trace.record(target, trace.begin(target), run())
        [chunk] = recorder.chunks()
        names = {0: ""}
        for kind, id_ in chunk.values("kind", "span_id"):
            names[id_] = chunk.kinds[kind].name
        return [
            (chunk.kinds[kind].name, names[parent], start - BEGAN_NS, duration, chunk.kinds[kind])
            for kind, parent, start, duration in chunk.values("kind", "parent_id", "start_ns", "duration_ns")
        ]

    return record


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_about_a_share_of_the_queries_is_chosen_spread_over_the_run(share: float, seed: int) -> None:
    sample = QuerySample(TraceContext("a" * 32), share, (seed, 0))

    chosen = sample.chosen(10_000)

    assert chosen.tolist() == [query for query in range(10_000) if query in sample]
    for part in range(10):
        inside = np.count_nonzero((chosen >= 1000 * part) & (chosen < 1000 * (part + 1)))
        assert inside == pytest.approx(1000 * share, abs=3)


def test_each_query_is_stamped_with_the_span_of_its_call() -> None:
    sample = QuerySample(TraceContext("a" * 32), 1.0, (0, 0))

    stamped = [TraceContext.parse(sample.traceparent(query)) for query in range(100)]

    assert [context.span_id for context in stamped] == [sample.span_id(query) for query in range(100)]
    assert len({context.span_id for context in stamped}) == 100
    assert all(context.sampled and context.trace_id == "a" * 32 for context in stamped)


def test_a_query_in_this_process_has_its_wait_its_batch_and_its_prediction(spans) -> None:
    found = [each[:4] for each in spans(object())]

    assert found == [
        ("run", "", 0, 210),
        ("query", "run", 0, 90),
        ("queue", "query", 10, 20),
        ("batch", "query", 30, 60),
        ("predict", "batch", 35, 40),
        ("query", "run", 100, 50),
        ("query", "run", 200, 10),
    ]


def test_a_query_elsewhere_has_its_call(spans) -> None:
    target = Stamping()

    found = spans(target)

    assert [each[:4] for each in found if each[0] != "query"] == [
        ("run", "", 0, 210),
        ("a.Service/Method", "query", 10, 80),
        ("a.Service/Method", "query", 110, 40),
        ("a.Service/Method", "query", 210, 0),
    ]
    assert target.sample is not None
    calls = [kind for *_, kind in found if kind.role is SpanRole.CLIENT]
    errors = [dict(kind.attributes).get("error.type") for kind in calls]
    assert errors == [None, "failed", "timed_out"]


def test_the_runs_of_a_search_have_queries_of_their_own(recorder: SpanRecorder) -> None:
    trace = LoadTrace(TraceScope.top(recorder), 1.0, 0)
    first, second = trace.begin(object()), trace.begin(object())

    ids = {sample.span_id(query) for sample in (first, second) for query in range(10)}

    assert len(ids) == 20
