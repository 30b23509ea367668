"""Queries in columns: latencies from the schedule, the harness's lag, and parts of a run."""

from __future__ import annotations

import numpy as np
from load_runs import run_of

from inferometer.evaluators.load.queries import Outcome
from inferometer.evaluators.statistics import NEVER_NS


def test_latency_counts_from_the_schedule_and_lag_to_the_sending() -> None:
    queries = run_of([0, 10, 20], [5, 6, 7], lag_ns=2)

    assert queries.latency_ns.tolist() == [5, 6, 7]
    assert queries.lag_ns.tolist() == [2, 2, 2]


def test_only_a_right_answer_is_ever_in_time() -> None:
    queries = run_of([0] * 5, [3] * 5, list(Outcome))

    assert queries.latency_ns.tolist() == [
        3 if outcome is Outcome.ANSWERED else NEVER_NS for outcome in Outcome
    ]
    assert len(queries.lag_ns) == 4  # the unsent one has none
    assert [queries.count(outcome) for outcome in Outcome] == [1] * 5


def test_since_keeps_what_was_due_from_then_on() -> None:
    queries = run_of([0, 10, 20], [5, 6, 7], batch_size=[1, 2, 3], repeated=4)

    later = queries.since(10)

    assert len(later) == 2
    assert later.scheduled_ns.tolist() == [10, 20]
    assert later.batch_size.tolist() == [2, 3]
    assert later.repeated == 4


def test_chosen_takes_every_column() -> None:
    queries = run_of([0, 10, 20], [5, 6, 7], queue_ns=[1, 2, 3], predict_ns=[4, 5, 6])

    some = queries.chosen(np.array([True, False, True]))

    assert some.latency_ns.tolist() == [5, 7]
    assert some.queue_ns.tolist() == [1, 3]
    assert some.predict_ns.tolist() == [4, 6]
