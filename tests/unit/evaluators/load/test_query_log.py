"""The log of a run: one outcome per query, in any order and from any thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.queries import Outcome, QueryLog

BEGAN_NS = 1_000


def log_of(*offsets: int) -> QueryLog:
    return QueryLog(Schedule(np.array(offsets, np.int64), "test", 1.0), BEGAN_NS)


def test_times_count_from_the_begin_of_the_run() -> None:
    log = log_of(5, 10)

    log.sent(0, BEGAN_NS + 6)
    log.answered(0, BEGAN_NS + 30, queue_ns=3, batch_ns=7, predict_ns=4, batch_size=2)

    queries = log.queries()
    assert (queries.sent_ns[0], queries.done_ns[0]) == (6, 30)
    assert (queries.queue_ns[0], queries.predict_ns[0], queries.batch_size[0]) == (3, 4, 2)
    assert queries.batch_ns.tolist() == [7, -1]
    assert queries.latency_ns[0] == 25
    assert queries.outcome.tolist() == [Outcome.ANSWERED, Outcome.UNSENT]
    assert (queries.sent_ns[1], queries.done_ns[1]) == (-1, -1)


@pytest.mark.parametrize("again", ["answered", "failed"])
@pytest.mark.parametrize("first", ["answered", "failed"])
def test_what_comes_again_is_counted_apart_and_changes_nothing(first: str, again: str) -> None:
    log = log_of(0, 1)
    log.sent(0, BEGAN_NS)
    tell = {"answered": lambda at: log.answered(0, at), "failed": lambda at: log.failed(0, at, "why")}

    tell[first](BEGAN_NS + 10)
    tell[again](BEGAN_NS + 20)

    queries = log.queries()
    assert queries.repeated == 1
    assert queries.done_ns[0] == 10
    assert Outcome(queries.outcome[0]).name.casefold() == first
    assert log.reasons == ({"why": 1} if first == "failed" else {})
    assert log.waiting == 0


def test_an_answer_that_is_read_later_keeps_when_it_came() -> None:
    log = log_of(0, 1, 2)
    for query in range(3):
        log.sent(query, BEGAN_NS)
        log.answered(query, BEGAN_NS + 30 + query)
    log.confirmed(0, queue_ns=3, batch_ns=7, predict_ns=4, batch_size=2)
    log.refuted(1, "no number")
    log.refuted(1, "again")
    log.confirmed(1, batch_size=5)

    queries = log.queries()
    assert queries.outcome.tolist() == [Outcome.ANSWERED, Outcome.FAILED, Outcome.ANSWERED]
    assert queries.done_ns.tolist() == [30, 31, 32]
    assert queries.queue_ns.tolist() == [3, -1, -1]
    assert queries.batch_size.tolist() == [2, 0, 0]
    assert log.reasons == {"no number": 1}
    assert (log.answered_count, log.replied_count, log.waiting) == (2, 3, 0)


def test_what_is_found_in_an_answer_after_its_query_was_given_up_counts_for_nothing() -> None:
    log = log_of(0)
    log.sent(0, BEGAN_NS)
    log.expire(BEGAN_NS + 100, 10)
    log.answered(0, BEGAN_NS + 110)
    log.confirmed(0, predict_ns=4)
    log.refuted(0, "no number")

    assert log.queries().outcome.tolist() == [Outcome.TIMED_OUT]
    assert log.queries().predict_ns.tolist() == [-1]
    assert log.reasons == {}


def test_a_query_that_is_late_is_given_up_once_and_its_answer_counts_for_nothing() -> None:
    log = log_of(0, 50, 100)
    log.sent(0, BEGAN_NS)
    log.sent(1, BEGAN_NS + 50)

    log.expire(BEGAN_NS + 100, timeout_ns=100)
    assert log.waiting == 2  # none is late by more than that yet
    log.expire(BEGAN_NS + 101, timeout_ns=100)
    log.expire(BEGAN_NS + 101, timeout_ns=100)
    log.answered(0, BEGAN_NS + 102)
    log.failed(0, BEGAN_NS + 103, "why")

    queries = log.queries()
    assert queries.outcome.tolist() == [Outcome.TIMED_OUT, Outcome.WAITING, Outcome.UNSENT]
    assert queries.repeated == 0
    assert log.waiting == 1
    assert log.reasons == {}


def test_a_query_is_late_by_when_it_was_due_and_not_by_when_it_was_sent() -> None:
    log = log_of(0, 50, 60, 70)
    for query in range(3):
        log.sent(query, BEGAN_NS + 90)
    log.answered(0, BEGAN_NS + 110)
    log.answered(1, BEGAN_NS + 110)
    log.failed(2, BEGAN_NS + 91, "why")

    assert log.late(BEGAN_NS + 100, bound_ns=100) == 0  # each may still be in time
    assert log.late(BEGAN_NS + 101, bound_ns=100) == 1
    assert log.late(BEGAN_NS + 500, bound_ns=100) == 2


def test_an_answered_query_never_times_out() -> None:
    log = log_of(0)
    log.sent(0, BEGAN_NS)
    log.answered(0, BEGAN_NS + 1)

    log.expire(BEGAN_NS + 10**9, timeout_ns=1)

    assert log.queries().count(Outcome.ANSWERED) == 1


def test_reasons_are_counted_the_most_frequent_first() -> None:
    log = log_of(0, 0, 0)
    for query, reason in enumerate(["full", "broken", "broken"]):
        log.sent(query, BEGAN_NS)
        log.failed(query, BEGAN_NS, reason)

    assert list(log.reasons.items()) == [("broken", 2), ("full", 1)]


def test_queries_are_a_copy_of_how_it_stands() -> None:
    log = log_of(0)
    before = log.queries()

    log.sent(0, BEGAN_NS)
    log.answered(0, BEGAN_NS + 1)

    assert before.count(Outcome.UNSENT) == 1
    assert before.done_ns.tolist() == [-1]


def test_answers_from_many_threads_are_each_counted_once() -> None:
    count = 2000
    log = log_of(*range(count))
    for query in range(count):
        log.sent(query, BEGAN_NS)

    def answer_all() -> None:
        for query in range(count):
            log.answered(query, BEGAN_NS + query)

    threads = [threading.Thread(target=answer_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert log.waiting == 0
    assert log.queries().count(Outcome.ANSWERED) == count
    assert log.queries().repeated == 3 * count
