"""Models on a server of the Open Inference Protocol under load, over real sockets."""

import itertools
import threading
import time
from contextlib import closing

import grpc
import numpy as np
import pytest
from fake_framework import DEADLINE_S, SIDE, mean_scores, wait_for
from kserve_server import Served, Tensor, running

from inferometer.agent.preprocessing.inputs import EncodedImage, Pixels
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions
from inferometer.client.remote import call_target
from inferometer.client.remote.call_target import CallFlight
from inferometer.client.remote.call_target import Outcome as CallOutcome
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.kserve.opening import ModelChoice, open_kserve
from inferometer.client.remote.kserve.session import KServeTarget
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.queries import Outcome, QueryLog
from inferometer.evaluators.load.target import PreparedInputs, ReadInputs
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError

INPUTS = (Tensor("pixels", "FP32", (-1, 1, SIDE, SIDE)),)
OUTPUTS = (Tensor("scores", "FP32", (-1, 3)),)
QUERIES = 40
SMALL = PreparedInputs.of_batch(
    {"data": np.arange(3, dtype=np.float32).repeat(SIDE * SIDE).reshape(3, 1, SIDE, SIDE)},
    "three levels of grey",
)
GREYS = (10, 200, 90)
READ = ReadInputs(tuple(Pixels(np.full((SIDE, SIDE), grey, np.uint8)) for grey in GREYS), "three greys")


def served(**changes):
    def means(batch):
        return {"scores": mean_scores(batch)}

    return Served(**{"model": means, "inputs": INPUTS, "outputs": OUTPUTS, **changes})


@pytest.fixture
def session_at(manifest_folder):
    sessions = []

    def open_one(server):
        sessions.append(open_kserve(server.address, Catalog([manifest_folder]), ModelChoice("Mean")))
        return sessions[-1]

    yield open_one
    for session in sessions:
        session.close()


def begin(target, count):
    log = QueryLog(Schedule(np.zeros(count, np.int64), "all at once", 1.0), time.perf_counter_ns())
    target.begin(log)
    for query in range(count):
        log.sent(query, time.perf_counter_ns())
        target.submit(query)
    return log


def run(target, count):
    log = begin(target, count)
    target.end(DEADLINE_S)
    return log


def assert_all_failed(log, count, reason):
    assert log.queries().count(Outcome.FAILED) == count
    [found] = log.reasons
    assert reason in found
    assert log.reasons[found] == count


@pytest.mark.parametrize("inputs", [SMALL, READ], ids=["prepared", "read"])
def test_every_query_is_answered_once_with_its_own_input(session_at, inputs):
    mean = served()
    with running(mean) as server, KServeTarget(session_at(server), inputs) as target:
        log = run(target, QUERIES)

    queries = log.queries()
    assert log.reasons == {}
    assert queries.count(Outcome.ANSWERED) == QUERIES
    assert queries.repeated == 0
    assert (queries.done_ns >= queries.sent_ns).all()
    sent = sorted(np.frombuffer(request.raw_input_contents[0], np.float32)[0] for _, request in mean.calls)
    given = range(3) if inputs is SMALL else GREYS
    assert sent == sorted(float(value) for value in itertools.islice(itertools.cycle(given), QUERIES))


def test_times_that_the_server_tells_are_kept_and_others_are_not_known(session_at):
    told = {"predict_ns": 1234, "queue_ns": 55, "batch_ns": 6, "batch_size": 8}
    with running(served(parameters=told)) as server, KServeTarget(session_at(server), SMALL) as target:
        queries = run(target, 4).queries()
    assert set(queries.predict_ns.tolist()) == {1234}
    assert set(queries.queue_ns.tolist()) == {55}
    assert set(queries.batch_ns.tolist()) == {6}
    assert set(queries.batch_size.tolist()) == {8}

    with running(served()) as server, KServeTarget(session_at(server), SMALL) as target:
        queries = run(target, 4).queries()
    assert set(queries.predict_ns.tolist()) == set(queries.queue_ns.tolist()) == {-1}
    assert set(queries.batch_ns.tolist()) == {-1}
    assert set(queries.batch_size.tolist()) == {0}


def test_queries_in_flight_take_no_threads_and_are_cancelled_at_the_end(session_at):
    hanging = served(holds={"ModelInfer"})
    with running(hanging) as server, KServeTarget(session_at(server), SMALL) as target:
        before = threading.active_count()
        log = begin(target, 100)
        assert threading.active_count() <= before + 10, "those of the server, and not one for each query"
        assert hanging.begun.wait(DEADLINE_S)
        target.end(0.01)
        hanging.holds.clear()
        hanging.release.set()
        assert run(target, 4).queries().count(Outcome.ANSWERED) == 4

    assert log.queries().count(Outcome.WAITING) == 100


def test_a_server_that_dies_fails_each_query_once(session_at):
    dying = served(holds={"ModelInfer"})
    with running(dying) as server, KServeTarget(session_at(server), SMALL) as target:
        log = begin(target, 20)
        assert dying.begun.wait(DEADLINE_S)
        server.server.stop(0)
        target.end(DEADLINE_S)

    queries = log.queries()
    assert queries.count(Outcome.FAILED) == 20
    assert queries.repeated == 0
    assert all(reason.startswith("server 127.0.0.1:") for reason in log.reasons)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"fails": {"ModelInfer": (grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")}},
            "resource exhausted: the queue is full",
        ),
        ({"model": lambda batch: {"scores": np.zeros((2, 3), np.float32)}}, "shape [2, 3] for a batch of 1"),
        ({"model": lambda batch: {"scores": np.full((1, 3), np.nan, np.float32)}}, "not a finite number"),
    ],
)
def test_an_answer_that_is_none_fails_its_query(session_at, changes, reason):
    with running(served(**changes)) as server, KServeTarget(session_at(server), SMALL) as target:
        assert_all_failed(run(target, 5), 5, reason)


def test_an_input_that_cannot_be_preprocessed_fails_alone(session_at):
    inputs = ReadInputs((READ.payloads[0], EncodedImage(b"none"), READ.payloads[1]), "one is none")
    with running(served()) as server, KServeTarget(session_at(server), inputs) as target:
        log = run(target, 6)

    assert log.queries().outcome.tolist() == [Outcome.ANSWERED, Outcome.FAILED, Outcome.ANSWERED] * 2


@pytest.mark.parametrize("inputs", [SMALL, READ], ids=["prepared", "read"])
def test_closing_fails_what_is_in_flight_once_and_leaves_the_session_open(session_at, inputs):
    hanging = served(holds={"ModelInfer"})
    with running(hanging) as server:
        session = session_at(server)
        target = KServeTarget(session, inputs)
        log = begin(target, 20)
        assert hanging.begun.wait(DEADLINE_S)
        target.close()
        target.close()
        hanging.release.set()

        assert_all_failed(log, 20, "the load target was closed while the query was in flight")
        assert log.queries().repeated == 0
        assert session.predict_tensor(SMALL.rows[1]).input_ids == ("0",)


def test_more_queries_than_may_be_in_flight_fail(session_at, monkeypatch):
    monkeypatch.setattr(call_target, "MAX_IN_FLIGHT", 2)
    hanging = served(holds={"ModelInfer"})
    with running(hanging) as server, KServeTarget(session_at(server), SMALL) as target:
        log = begin(target, 5)
        refused = log.reasons
        hanging.release.set()
        target.end(DEADLINE_S)

    assert refused == {"the limit of 2 queries in flight is reached": 3}
    assert log.queries().outcome.tolist() == [Outcome.ANSWERED] * 2 + [Outcome.FAILED] * 3


def test_a_server_that_takes_no_single_input_is_refused(session_at):
    pairs = served(inputs=(Tensor("pixels", "FP32", (2, 1, SIDE, SIDE)),))
    with running(pairs) as server, pytest.raises(ConfigurationError, match="takes 2 inputs in a request"):
        KServeTarget(session_at(server), SMALL)


def scored(scores):
    return {"model": lambda batch: {"scores": np.array([scores(float(batch[0, 0, 0, 0]))] * 3)[None]}}


@pytest.mark.parametrize(
    "closes", [lambda target: target.end(DEADLINE_S), KServeTarget.close], ids=["end", "close"]
)
def test_replies_after_a_right_one_are_read_when_the_run_is_over(session_at, closes, monkeypatch):
    """The second input of three gets no numbers; what is known of the run until its end does not tell."""
    monkeypatch.setattr(call_target, "TRUST_NS", 10**15)
    told = {"predict_ns": 1234, "queue_ns": 55, "batch_ns": 6, "batch_size": 8}
    lacking = served(**scored(lambda grey: np.float32("nan" if grey == 1 else grey)), parameters=told)
    with running(lacking) as server, KServeTarget(session_at(server), SMALL) as target:
        assert run(target, 1).queries().count(Outcome.ANSWERED) == 1
        log = QueryLog(Schedule(np.zeros(9, np.int64), "one by one", 1.0), time.perf_counter_ns())
        target.begin(log)
        for query in range(9):
            log.sent(query, time.perf_counter_ns())
            target.submit(query)
            wait_for(lambda: not log.waiting)
        before = log.queries()
        closes(target)

    queries = log.queries()
    assert before.outcome.tolist() == [Outcome.ANSWERED] * 9
    assert queries.outcome.tolist() == [Outcome.ANSWERED, Outcome.FAILED, Outcome.ANSWERED] * 3
    assert queries.done_ns.tolist() == before.done_ns.tolist()
    assert log.reasons == {"the model's output is not a finite number": 3}
    assert (log.answered_count, log.replied_count, queries.repeated) == (6, 9, 0)
    right = queries.chosen(queries.outcome == Outcome.ANSWERED)
    assert set(right.predict_ns.tolist()) == {1234}
    assert set(right.batch_size.tolist()) == {8}


def test_replies_are_read_as_they_come_until_one_is_right(session_at):
    wrong = served(**scored(lambda grey: np.float32("nan")))
    with running(wrong) as server, KServeTarget(session_at(server), SMALL) as target:
        log = begin(target, 9)
        wait_for(lambda: not log.waiting)
        assert log.queries().count(Outcome.FAILED) == 9


@pytest.mark.parametrize("limit", ["MAX_KEPT_BYTES", "MOST_KEPT_BYTES"])
def test_replies_beyond_the_memory_for_them_are_read_as_they_come(session_at, monkeypatch, limit):
    monkeypatch.setattr(call_target, limit, 0)
    told = served(parameters={"predict_ns": 1234})
    with running(told) as server, KServeTarget(session_at(server), SMALL) as target:
        log = begin(target, 9)
        wait_for(lambda: not log.waiting)
        assert set(log.queries().predict_ns.tolist()) == {1234}


class Told:
    """Keeps the outcomes."""

    def __init__(self):
        self.outcomes = []

    def answered(self, query, done_ns, **times):
        self.outcomes.append((query, "answered"))

    def failed(self, query, done_ns, reason):
        self.outcomes.append((query, reason))


def test_a_query_whose_run_ends_while_it_is_prepared_is_not_told_of_later():
    told = Told()
    flight = CallFlight(told, lambda done: CallOutcome(1), lambda reply: CallOutcome(1))
    cancelled = []

    class Call:
        def cancel(self):
            cancelled.append(True)

        def add_done_callback(self, done):
            done(self)

    def begin_as_the_run_ends(request):
        flight.cancel("closed")
        return Call()

    flight.announce(7)
    flight.send(7, b"request", begin_as_the_run_ends)
    flight.fail(7, "late")

    assert cancelled == [True]
    assert told.outcomes == [(7, "closed")]


@pytest.mark.parametrize("scheme", ["kserve", "kserve+http"])
def test_a_priority_is_a_parameter_of_each_request(start_agent, manifest_folder, scheme):
    levels = BatchingOptions(priority_levels=2, default_priority_level=2)
    agent = start_agent(serving=ServingOptions(batching=levels), http_port=0)
    address = agent.http_url.removeprefix("http://") if scheme.endswith("http") else agent.address

    def opened(priority):
        catalog, remote = Catalog([manifest_folder]), RemoteOptions(priority=priority)
        return open_kserve(f"{scheme}://{address}", catalog, ModelChoice("Mean"), remote=remote)

    with closing(opened(1)) as session:
        request = session.predictor.form.encode({"data": np.zeros((1, 1, SIDE, SIDE), np.float32)})
        result = session.predict_tensor(np.zeros((1, 1, SIDE, SIDE), np.float32))
    assert b"priority" in request
    assert len(result.input_ids) == 1
    with pytest.raises(ConfigurationError, match="priority is 3, but the model has 2 priority levels"):
        opened(3)
