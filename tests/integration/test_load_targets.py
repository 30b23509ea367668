"""Open models under load, in this process and over a socket: right outputs, one outcome per query."""

import io
import itertools
import threading
import time

import numpy as np
import psutil
import pytest
from fake_framework import DEADLINE_S, SIDE, fake_registry, wait_for
from PIL import Image

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session, select_model
from inferometer.agent.preprocessing.inputs import EncodedImage, Pixels
from inferometer.agent.preprocessing.model_preprocessor import model_preprocessor_of
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.client.remote import call_target
from inferometer.client.remote.native.agent import RemoteTarget, open_remote_agent
from inferometer.evaluators.datasets.opening import open_dataset
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.local_target import LocalTarget
from inferometer.evaluators.load.queries import Outcome, QueryLog
from inferometer.evaluators.load.target import PreparedInputs, ReadInputs, prepare_inputs, read_inputs
from inferometer.manifests.catalog import Catalog
from inferometer.protos.inferometer.v1 import predict_pb2
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub

FRAMEWORKS = ["PyTorch", "MXNet", "ONNXRuntime"]
INPUTS = 12
QUERIES = 40
SMALL = PreparedInputs.of_batch(
    {"data": np.arange(3, dtype=np.float32).repeat(SIDE * SIDE).reshape(3, 1, SIDE, SIDE)},
    "three levels of grey",
)


@pytest.fixture(scope="module")
def digits_agent():
    server = AgentServer(Catalog(), Registry(), ServerOptions(port=0))
    server.start()
    yield server
    server.stop(0)


@pytest.fixture(scope="module")
def digits():
    """The first digits, twice: as they are, and as a list."""
    dataset = open_dataset(Catalog().find_dataset("digits_validation"))
    yield dataset, list(itertools.islice(dataset, INPUTS))
    dataset.close()


class RecordedSession:
    """A session whose results are kept in the order in which they were asked for."""

    def __init__(self, session):
        self._session = session
        self.description = session.description
        self.classes = []

    def predict(self, inputs):
        return self._kept(self._session.predict(inputs))

    def predict_tensor(self, batch):
        return self._kept(self._session.predict_tensor(batch))

    def _kept(self, result):
        self.classes += classes(result)
        return result


class RecordedAgent:
    """A remote agent whose results are kept by the order in which they were asked for."""

    def __init__(self, remote):
        self.description = remote.description
        self.session_id = remote.session_id
        self.address = remote.connection.address
        self.connection = self
        self._connection = remote.connection
        self.calls = []
        self._classes = {}

    @property
    def classes(self):
        return [self._classes[number] for number in range(len(self.calls))]

    def hold(self):
        return self._connection.hold()

    def begin_predict(self, request):
        self.calls.append(self._connection.begin_predict(request))
        return self.calls[-1]

    def end_predict(self, call):
        answer = self._connection.end_predict(call)
        [self._classes[self.calls.index(call)]] = classes(self.read(answer))
        return answer

    def read(self, answer):
        return self._connection.read(answer)


def classes(result):
    return result.outputs.indices[:, 0].tolist()


def begin(target, count):
    """Begins a run, and hands over its queries."""
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


def assert_all_answered(log, count):
    queries = log.queries()
    assert log.reasons == {}
    assert queries.count(Outcome.ANSWERED) == count
    assert queries.repeated == 0
    assert (queries.done_ns >= queries.sent_ns).all()
    assert (queries.predict_ns > 0).all()
    assert (queries.predict_ns <= queries.done_ns - queries.sent_ns).all()
    return queries


def assert_all_failed(log, count, reason):
    queries = log.queries()
    assert log.reasons == {reason: count}
    assert queries.count(Outcome.FAILED) == count
    assert queries.repeated == 0


def load_inputs(dataset, manifest, include_preprocess):
    if include_preprocess:
        return read_inputs(dataset, max_inputs=INPUTS)
    return prepare_inputs(dataset, model_preprocessor_of(manifest), max_inputs=INPUTS)


@pytest.mark.parametrize("include_preprocess", [False, True], ids=["prepared", "read"])
@pytest.mark.parametrize("max_batch_size", [1, 8])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_session_under_load_answers_as_it_does_without(
    digits, framework, max_batch_size, include_preprocess
):
    dataset, samples = digits
    manifest = select_model(Catalog(), Registry(), "DigitsCNN", None, framework)
    inputs = load_inputs(dataset, manifest, include_preprocess)
    with open_session(manifest, SessionOptions(), Registry()) as session:
        expected = classes(session.predict(samples))
        recorded = RecordedSession(session)
        # with this delay every batch is full, however slow this machine is
        with LocalTarget(
            recorded, inputs, max_batch_size=max_batch_size, max_queue_delay_ms=60_000
        ) as target:
            queries = assert_all_answered(run(target, QUERIES), QUERIES)

        assert len(set(expected)) > 2
        assert recorded.classes == [expected[query % INPUTS] for query in range(QUERIES)]
        assert (queries.queue_ns >= 0).all()
        parts_ns = queries.queue_ns + queries.batch_ns + queries.predict_ns
        assert (queries.batch_ns > 0).all()
        assert (parts_ns <= queries.done_ns - queries.sent_ns).all()
        assert set(queries.batch_size.tolist()) == {max_batch_size}
        assert session.predict(samples[:1]).input_ids, "the session is still open"


@pytest.mark.parametrize("include_preprocess", [False, True], ids=["prepared", "read"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_agent_under_load_answers_as_a_session_does(digits_agent, digits, framework, include_preprocess):
    dataset, samples = digits
    manifest = select_model(Catalog(), Registry(), "DigitsCNN", None, framework)
    with open_session(manifest, SessionOptions(), Registry()) as session:
        expected = classes(session.predict(samples))
    with open_remote_agent(digits_agent.address, "DigitsCNN", None, framework) as remote:
        recorded = RecordedAgent(remote)
        inputs = load_inputs(dataset, remote.description.manifest, include_preprocess)
        with RemoteTarget(recorded, inputs) as target:
            assert target.description.manifest.name == "DigitsCNN"
            assert_all_answered(run(target, QUERIES), QUERIES)

        assert recorded.classes == [expected[query % INPUTS] for query in range(QUERIES)]
        assert remote.predict(samples[:1]).input_ids, "the session is still open"


def test_an_agent_that_is_killed_fails_each_query_once_and_all_that_come_later(spawn_agent, manifest_folder):
    agent = spawn_agent()
    with open_remote_agent(agent.address, "Waiting") as remote, RemoteTarget(remote, SMALL) as target:
        log = begin(target, 50)
        wait_for((manifest_folder / "begun").exists)
        agent.process.kill()
        target.end(DEADLINE_S)
        assert_all_failed(
            log, 50, f"agent {agent.address}: the connection was lost; the agent was stopped or has crashed"
        )

        agent.process.wait(DEADLINE_S)
        later = run(target, 1)
        assert later.queries().count(Outcome.FAILED) == 1
        [reason] = later.reasons
        assert reason.startswith(f"agent {agent.address}: ")


def test_queries_in_flight_take_no_threads(spawn_agent, manifest_folder):
    agent = spawn_agent()
    with open_remote_agent(agent.address, "Waiting") as remote, RemoteTarget(remote, SMALL) as target:
        before = threading.active_count()
        log = begin(target, 200)
        assert threading.active_count() <= before + 2
        assert log.waiting == 200
        (manifest_folder / "go").touch()
        target.end(DEADLINE_S)
        assert log.queries().count(Outcome.ANSWERED) == 200


def test_queries_one_by_one_start_no_threads_as_grpc_does_for_a_call_that_is_alone(spawn_agent, monkeypatch):
    started = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread) or start(thread))
    with open_remote_agent(spawn_agent().address, "Mean") as remote, RemoteTarget(remote, SMALL) as target:
        assert_all_answered(run(target, 1), 1)
        started.clear()
        for _ in range(5):
            assert_all_answered(run(target, 1), 1)

        assert started == []


@pytest.mark.real_time
def test_an_agent_drops_no_query_of_a_burst_that_its_queue_can_hold(spawn_agent):
    burst = BatchingOptions().max_queue
    with open_remote_agent(spawn_agent().address, "Mean") as remote, RemoteTarget(remote, SMALL) as target:
        assert_all_answered(run(target, burst), burst)


def test_a_prediction_that_hangs_at_an_agent_ends_by_the_timeout(start_agent, manifest_folder):
    agent = start_agent()
    with open_remote_agent(agent.address, "Waiting") as remote, RemoteTarget(remote, SMALL) as target:
        hanging = begin(target, 3)
        wait_for((manifest_folder / "begun").exists)
        target.end(0.01)
        (manifest_folder / "go").touch()
        assert_all_answered(run(target, 4), 4)

    assert hanging.waiting == 3
    assert hanging.queries().count(Outcome.WAITING) == 3


def test_a_prediction_that_hangs_in_this_process_ends_by_the_timeout(manifest_folder):
    registry = fake_registry()
    manifest = select_model(Catalog([manifest_folder]), registry, "Waiting", None, "Fake")
    with open_session(manifest, SessionOptions(), registry) as session, LocalTarget(session, SMALL) as target:
        hanging = begin(target, 3)
        wait_for((manifest_folder / "begun").exists)
        target.end(0.01)
        (manifest_folder / "go").touch()
        assert_all_answered(run(target, 4), 4)

    assert hanging.queries().count(Outcome.WAITING) == 3


def test_closing_cancels_what_is_in_flight(start_agent, manifest_folder):
    agent = start_agent()
    with open_remote_agent(agent.address, "Waiting") as remote:
        recorded = RecordedAgent(remote)
        target = RemoteTarget(recorded, SMALL)
        log = begin(target, 5)
        wait_for((manifest_folder / "begun").exists)
        target.close()
        target.close()
        (manifest_folder / "go").touch()

        assert all(call.cancelled() for call in recorded.calls)
        assert_all_failed(log, 5, "the load target was closed while the query was in flight")
        assert remote.predict_tensor(SMALL.rows[1]).input_ids == ("0",), "the agent is still open"


def test_more_queries_than_may_be_in_flight_fail(start_agent, manifest_folder, monkeypatch):
    monkeypatch.setattr(call_target, "MAX_IN_FLIGHT", 2)
    agent = start_agent()
    with open_remote_agent(agent.address, "Waiting") as remote, RemoteTarget(remote, SMALL) as target:
        log = begin(target, 5)
        refused = log.reasons
        (manifest_folder / "go").touch()
        target.end(DEADLINE_S)

    assert refused == {"the limit of 2 queries in flight is reached": 3}
    assert log.queries().outcome.tolist() == [Outcome.ANSWERED] * 2 + [Outcome.FAILED] * 3


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("Failing", "the fake framework failed"),
        (
            "Crashing",
            "agent {address}: internal: Predict failed in the agent (ZeroDivisionError); "
            "the agent's log says more",
        ),
    ],
)
def test_an_agent_that_fails_gives_its_reason_in_one_line(start_agent, model, reason):
    agent = start_agent()
    with open_remote_agent(agent.address, model) as remote, RemoteTarget(remote, SMALL) as target:
        assert_all_failed(run(target, 4), 4, reason.format(address=agent.address))


def test_a_session_that_the_agent_has_closed_fails_each_query(start_agent, channel_to):
    agent = start_agent()
    with open_remote_agent(agent.address, "Mean") as remote, RemoteTarget(remote, SMALL) as target:
        PredictServiceStub(channel_to(agent.address)).Reset(predict_pb2.ResetRequest(), timeout=DEADLINE_S)

        reason = "the session is not open: it was closed, was idle too long or never existed; open another"
        assert_all_failed(run(target, 3), 3, reason)


def test_a_connection_that_is_closed_fails_each_query(start_agent):
    agent = start_agent()
    remote = open_remote_agent(agent.address, "Mean")
    with RemoteTarget(remote, SMALL) as target:
        remote.close()

        reason = f"the connection to agent {agent.address} is closed; open another"
        assert_all_failed(run(target, 3), 3, reason)


def test_an_input_that_an_agent_cannot_preprocess_fails_alone(start_agent):
    file = io.BytesIO()
    Image.new("L", (SIDE, SIDE), 7).save(file, "PNG")
    good = EncodedImage(file.getvalue())
    inputs = ReadInputs((good, EncodedImage(b"none"), Pixels(np.zeros((SIDE, SIDE), np.uint8))), "three")
    with open_remote_agent(start_agent().address, "Mean") as remote, RemoteTarget(remote, inputs) as target:
        log = run(target, 6)

    assert log.queries().outcome.tolist() == [Outcome.ANSWERED, Outcome.FAILED, Outcome.ANSWERED] * 2
    assert list(log.reasons.values()) == [2]


def test_a_target_that_reconnects_sends_over_a_new_connection(spawn_agent):
    agent = spawn_agent()
    port = int(agent.address.rpartition(":")[2])

    def ours():
        found = psutil.Process().net_connections("tcp")
        return {each.laddr.port for each in found if each.raddr and each.raddr.port == port}

    with open_remote_agent(agent.address, "Mean") as remote, RemoteTarget(remote, SMALL) as target:
        assert_all_answered(run(target, 1), 1)
        first = ours()

        target.reconnect()

        assert_all_answered(run(target, 1), 1)
        wait_for(lambda: len(first - ours()) == len(ours() - first) == 1)
