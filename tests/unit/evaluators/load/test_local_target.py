"""A session under load: its queue, its batches, and the outcome of every query."""

import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from inferometer.agent.hardware.environment import Precision
from inferometer.agent.inference.stages import BatchResult, InputFailure, Stage, StageTimes
from inferometer.agent.preprocessing.inputs import Tensor
from inferometer.evaluators.load.local_target import LocalTarget, SwitchedTarget
from inferometer.evaluators.load.target import PreparedInputs, ReadInputs
from inferometer.manifests.errors import ConfigurationError, PredictionError, SessionError

DEADLINE_S = 30


class Told:
    """Keeps what is told of queries."""

    def __init__(self):
        self.answers = defaultdict(list)
        self.failures = defaultdict(list)
        self.batch_ns = {}
        self._changed = threading.Condition()

    def answered(self, query, done_ns, *, queue_ns=-1, batch_ns=-1, predict_ns=-1, batch_size=0):
        with self._changed:
            self.answers[query].append((done_ns, queue_ns, predict_ns, batch_size))
            self.batch_ns[query] = batch_ns
            self._changed.notify_all()

    def failed(self, query, done_ns, reason):
        with self._changed:
            self.failures[query].append(reason)
            self._changed.notify_all()

    def wait_for(self, count):
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self.answers) + len(self.failures) >= count, DEADLINE_S
            ), "queries have no outcome"


class FakeSession:
    """Predicts nothing; each batch waits until ``gate`` is open."""

    description = SimpleNamespace(manifest=SimpleNamespace(tensors=[SimpleNamespace(name="numbers")]))

    def __init__(self):
        self.batches = []
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Semaphore(0)
        self.raises = None
        self.bad_value = None

    def predict_tensor(self, batch):
        return self._predict([float(row.flat[0]) for row in batch["numbers"]])

    def predict(self, inputs):
        return self._predict([float(item.read().array.flat[0]) for item in inputs])

    def _predict(self, values):
        self.batches.append(values)
        self.begun.release()
        assert self.gate.wait(DEADLINE_S)
        if self.raises is not None:
            raise self.raises
        bad = [str(n) for n, value in enumerate(values) if value == self.bad_value]
        good = tuple(str(n) for n in range(len(values)) if str(n) not in bad)
        failures = tuple(InputFailure(id_, Stage.POSTPROCESS, "is not finite") for id_ in bad)
        return BatchResult(good, None, failures, StageTimes(0, 0, 7, 0))


class Ticks:
    """A clock that is later by the same each time it is read, in nanoseconds."""

    def __init__(self, step=1):
        self._now = 0
        self._step = step

    def __call__(self):
        self._now += self._step
        return self._now


@pytest.fixture
def session():
    session = FakeSession()
    yield session
    session.gate.set()


@pytest.fixture
def make_target(session):
    targets = []

    def make(count=4, **options):
        target = LocalTarget(session, tensors(count), **options)
        targets.append(target)
        return target

    yield make
    session.gate.set()
    for target in targets:
        target.close()


def tensors(count):
    return PreparedInputs.of_batch(
        {"numbers": np.arange(count, dtype=np.float32)[:, None].repeat(3, axis=1)}, "test"
    )


def run(target, queries, timeout_s=DEADLINE_S):
    told = Told()
    target.begin(told)
    for query in queries:
        target.submit(query)
    target.end(timeout_s)
    return told


def block(session, target, told, query=0):
    """Lets the model be busy with one query."""
    session.gate.clear()
    target.begin(told)
    target.submit(query)
    assert session.begun.acquire(timeout=DEADLINE_S)


def test_queries_predict_the_inputs_in_order_and_begin_again_after_the_last(session, make_target):
    told = run(make_target(count=3), range(7))

    assert session.batches == [[0.0], [1.0], [2.0], [0.0], [1.0], [2.0], [0.0]]
    assert {query: len(times) for query, times in told.answers.items()} == dict.fromkeys(range(7), 1)
    assert not told.failures


def test_inputs_that_are_only_read_are_preprocessed_by_the_session(session):
    payloads = tuple(Tensor(np.full(3, value, np.float32)) for value in (5, 6))
    with LocalTarget(session, ReadInputs(payloads, "test"), max_batch_size=4) as target:
        told = Told()
        block(session, target, told)
        for query in (1, 2, 4):
            target.submit(query)
        session.gate.set()
        target.end(DEADLINE_S)

    # the same input may be in a batch twice
    assert session.batches == [[5.0], [6.0, 5.0, 5.0]]
    assert sorted(told.answers) == [0, 1, 2, 4]


def test_what_waits_while_the_model_is_busy_is_put_into_batches(session, make_target):
    target, told = make_target(max_batch_size=3), Told()
    block(session, target, told)
    for query in range(1, 6):
        target.submit(query)
    session.gate.set()
    target.end(DEADLINE_S)

    assert session.batches == [[0.0], [1.0, 2.0, 3.0], [0.0, 1.0]]
    assert [told.answers[query][0][3] for query in range(6)] == [1, 3, 3, 3, 2, 2]


def test_a_batch_that_is_not_full_is_predicted_after_its_delay(session, make_target):
    told = run(make_target(max_batch_size=8, max_queue_delay_ms=1.0), range(2))

    assert [value for batch in session.batches for value in batch] == [0.0, 1.0]
    assert sorted(told.answers) == [0, 1]


def test_an_answer_tells_its_queue_and_prediction_times(make_target):
    told = run(make_target(clock=Ticks()), [0])

    # the clock was read when the query came, when its batch began, and when that was done
    assert told.answers == {0: [(3, 1, 7, 1)]}


def test_what_of_a_batch_is_neither_prediction_nor_after_it_is_its_putting_together(session, make_target):
    session.predict_tensor = lambda batch: BatchResult(("0",), None, (), StageTimes(0, 0, 7, 13))

    assert run(make_target(clock=Ticks(100)), [0]).batch_ns == {0: 80}


def test_a_full_queue_fails_the_query_and_nothing_else(session, make_target):
    target, told = make_target(max_queue=2), Told()
    block(session, target, told)
    for query in (1, 2, 3, 4):
        target.submit(query)
    refused = dict(told.failures)
    session.gate.set()
    target.end(DEADLINE_S)

    assert refused == {3: ["the queue is full, 2 queries wait"], 4: ["the queue is full, 2 queries wait"]}
    assert sorted(told.answers) == [0, 1, 2]


def test_queries_that_wait_for_their_batch_to_fill_count_as_waiting(session, make_target):
    target, told = make_target(max_batch_size=3, max_queue_delay_ms=3_600_000, max_queue=2), Told()
    target.begin(told)
    for query in (0, 1, 2):
        target.submit(query)

    assert list(told.failures) == [2]
    assert not session.batches


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PredictionError("the model\nfailed"), "the model failed"),
        (ZeroDivisionError("division\nby zero"), "ZeroDivisionError: division by zero"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_an_error_fails_the_queries_of_its_batch_and_the_next_ones_are_answered(
    session, make_target, error, line
):
    target, told = make_target(max_batch_size=2), Told()
    session.raises = error
    block(session, target, told)
    session.gate.set()
    told.wait_for(1)
    session.raises = None
    for query in (1, 2):
        target.submit(query)
    target.end(DEADLINE_S)

    assert told.failures == {0: [line]}
    assert sorted(told.answers) == [1, 2]


def test_an_input_that_fails_in_a_batch_fails_alone(session, make_target):
    target, told = make_target(max_batch_size=4), Told()
    session.bad_value = 2.0
    block(session, target, told)
    for query in (1, 2, 3):
        target.submit(query)
    session.gate.set()
    target.end(DEADLINE_S)

    assert told.failures == {2: ["is not finite"]}
    assert {query: times[0][2:] for query, times in told.answers.items()} == {0: (7, 1), 1: (7, 3), 3: (7, 3)}


def test_a_query_that_the_session_says_nothing_of_has_failed(session, make_target):
    session.predict_tensor = lambda batch: BatchResult((), None, (), StageTimes(0, 0, 0, 0))

    assert run(make_target(), [0]).failures == {0: ["the model gave no answer for the query"]}


def test_a_session_that_answers_one_query_twice_has_not_answered_the_other(session, make_target):
    session.predict_tensor = lambda batch: BatchResult(("0", "0"), None, (), StageTimes(0, 0, 7, 0))
    told = run(make_target(max_batch_size=2, max_queue_delay_ms=60_000), [0, 1])

    assert {query: len(times) for query, times in told.answers.items()} == {0: 2}
    assert told.failures == {1: ["the model gave no answer for the query"]}


def test_a_prediction_that_hangs_ends_by_the_timeout_and_its_answer_goes_nowhere(session, make_target):
    target, told = make_target(), Told()
    block(session, target, told)
    target.submit(1)
    target.end(0.01)
    session.gate.set()
    later = run(target, [2])

    assert not told.answers
    assert not told.failures
    assert sorted(later.answers) == [2]
    assert session.batches == [[0.0], [2.0]], "what waited at the end of its run is not predicted"


def test_the_end_waits_for_what_is_being_predicted(session, make_target):
    target, told = make_target(), Told()
    block(session, target, told)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(target.end, DEADLINE_S)
        assert not ended.done()
        session.gate.set()
        ended.result(DEADLINE_S)

    assert sorted(told.answers) == [0]


def test_closing_fails_what_waits_and_answers_what_is_being_predicted(session, make_target, monkeypatch):
    def open_and_join(thread, timeout=None):
        session.gate.set()
        join(thread, timeout)

    join = threading.Thread.join
    target, told = make_target(max_batch_size=2), Told()
    block(session, target, told)
    for query in (1, 2, 3):
        target.submit(query)
    # the model is free only when closing waits for its thread
    monkeypatch.setattr(threading.Thread, "join", open_and_join)
    target.close()

    assert sorted(told.answers) == [0]
    reason = "the load target was closed while the query waited"
    assert told.failures == {1: [reason], 2: [reason], 3: [reason]}


def test_closing_fails_a_batch_that_is_being_filled(session, make_target):
    target, told = make_target(max_batch_size=3, max_queue_delay_ms=3_600_000), Told()
    target.begin(told)
    for query in (0, 1):
        target.submit(query)
    target.close()

    assert sorted(told.failures) == [0, 1]
    assert not session.batches


def test_after_closing_no_run_begins_and_the_thread_is_gone(make_target):
    before = threading.active_count()
    target = make_target()
    target.close()
    target.close()

    assert threading.active_count() == before
    with pytest.raises(SessionError, match="the load target is closed"):
        target.begin(Told())


def test_threads_switch_quickly_during_a_run_only(make_target):
    before_s = sys.getswitchinterval()
    target = make_target()
    target.begin(Told())
    assert sys.getswitchinterval() < before_s
    target.end(0.0)
    assert sys.getswitchinterval() == before_s
    target.begin(Told())
    target.close()
    assert sys.getswitchinterval() == before_s


def test_a_run_has_to_begin_before_its_queries(make_target):
    with pytest.raises(SessionError, match="call begin before submit"):
        make_target().submit(0)


def test_a_queue_without_room_is_refused(make_target):
    with pytest.raises(ConfigurationError, match="max_queue is 0; it must be at least 1"):
        make_target(max_queue=0)


class _Opened:
    """A model that is open with a number of threads and in a precision; it has a target of its own."""

    def __init__(self, threads, precision):
        self.description = SimpleNamespace(threads=threads, precision=precision)
        self.closed = False

    def load_target(self, _):
        nothing = dict.fromkeys(("begin", "submit", "end", "reconnect"))
        return SimpleNamespace(close=lambda: None, **nothing)

    def close(self):
        self.closed = True


def test_a_model_is_opened_anew_only_for_other_threads_or_another_precision():
    opened = [_Opened(1, Precision.FLOAT32)]

    def reopen(threads, precision):
        assert opened[-1].closed
        if precision is Precision.FLOAT16:
            raise ConfigurationError("no kernel for float16")
        opened.append(_Opened(threads, precision))
        return opened[-1]

    target = SwitchedTarget(opened[0], None, reopen)
    ways = [
        (1, Precision.FLOAT32, "", 1),
        (1, None, "", 1),
        (1, Precision.BFLOAT16, "", 2),
        (None, None, "", 2),
        (2, Precision.BFLOAT16, "", 3),
        (2, Precision.FLOAT16, "no kernel for float16", 3),
        (2, Precision.BFLOAT16, "", 4),
    ]
    for threads, precision, reason, count in ways:
        assert target.use(threads, precision) == reason
        assert len(opened) == count
    found = [(each.description.threads, each.description.precision) for each in opened]
    assert found[1:] == [(1, Precision.BFLOAT16), *[(2, Precision.BFLOAT16)] * 2]
    assert target.description is opened[-1].description
