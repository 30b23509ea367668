"""Requests of several clients that an agent batches, over sockets."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from fake_framework import SIDE, mean_scores, wait_for

from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.native.agent import RemoteTarget, open_remote_agent
from inferometer.evaluators.load.target import PreparedInputs
from inferometer.manifests.errors import DeadlineError, InputError, QueueFullError
from inferometer.protos.inferometer.v1 import predict_pb2, tensor_pb2
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub

TIMEOUT_S = 30
INVALID = grpc.StatusCode.INVALID_ARGUMENT
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture
def go(manifest_folder):
    """Lets the models that wait go on, and those that begin later not wait."""
    return (manifest_folder / "go").touch


@pytest.fixture
def start(start_agent, go):
    """Starts an agent that puts requests together."""

    def agent(memory_limit_bytes=None, **batching):
        serving = ServingOptions(BatchingOptions(**batching), memory_limit_bytes=memory_limit_bytes)
        return start_agent(serving=serving)

    yield agent
    go()


@pytest.fixture
def stub_of(channel_to):
    return lambda agent: PredictServiceStub(channel_to(agent.address))


def open_model(stub, name="Picky", **fields):
    return stub.Open(predict_pb2.OpenRequest(model_name=name, **fields), timeout=TIMEOUT_S).session_id


def batch(*values):
    """A batch with an input of each value."""
    return np.stack([np.full((1, SIDE, SIDE), value, np.float32) for value in values])


def request(session_id, *values):
    array = batch(*values)
    tensor = tensor_pb2.Tensor(dtype="float32", shape=array.shape, content=array.tobytes())
    return predict_pb2.PredictRequest(session_id=session_id, batch=tensor)


def values_of(response):
    [named] = response.raw.tensors
    array = np.frombuffer(named.tensor.content, np.float32).reshape(named.tensor.shape)
    return array[:, 0, 0, 0].tolist()


class Queue:
    """Calls that wait at a model that is busy with a first one."""

    def __init__(self, agent, stub, session_id, manifest_folder):
        self.agent = agent
        self.stub = stub
        self.session_id = session_id
        self.first = stub.Predict.future(request(session_id, 0), timeout=TIMEOUT_S)
        wait_for((manifest_folder / "begun").exists)

    @property
    def waiting(self):
        return sum(model.waiting for model in self.agent.models.loaded)

    def add(self, *values, session_id=None, timeout_s=TIMEOUT_S):
        before = self.waiting
        call = self.stub.Predict.future(request(session_id or self.session_id, *values), timeout=timeout_s)
        wait_for(lambda: self.waiting == before + 1)
        return call


@pytest.fixture
def queue_of(start, stub_of, manifest_folder):
    def queue(**batching):
        agent = start(**batching)
        stub = stub_of(agent)
        return Queue(agent, stub, open_model(stub, feature_limit=5), manifest_folder)

    return queue


def test_calls_that_wait_are_predicted_together_and_their_times_say_so(queue_of, go):
    queue = queue_of(max_batch_size=8)
    calls = [queue.add(1), queue.add(2, 3), queue.add(4)]
    go()
    responses = [call.result() for call in calls]

    assert [values_of(response) for response in responses] == [[1], [2, 3], [4]]
    assert [response.times.batch_size for response in responses] == [4, 4, 4]
    assert queue.first.result().times.batch_size == 1
    queued_ns = [response.times.queue_ns for response in responses]
    assert queued_ns == sorted(queued_ns, reverse=True)
    assert all(response.times.queue_ns > 0 and response.times.batch_ns > 0 for response in responses)
    assert all(response.times.predict_ns > 0 for response in responses)


def test_clients_that_open_the_same_model_with_the_same_options_share_it(start, stub_of, go):
    agent = start(max_batch_size=8)
    stub = stub_of(agent)
    ids = [open_model(stub, "Echo") for _ in range(3)]
    assert len(set(ids)) == 3
    assert len(agent.models) == 1
    assert open_model(stub, "Echo", threads=2) not in ids
    assert len(agent.models) == 2

    stub.Close(predict_pb2.CloseRequest(session_id=ids[0]), timeout=TIMEOUT_S)
    for id_, value in zip(ids[1:], (5, 6), strict=True):
        assert values_of(stub.Predict(request(id_, value), timeout=TIMEOUT_S)) == [value]


def test_calls_of_two_sessions_are_in_one_batch(queue_of, go):
    queue = queue_of(max_batch_size=8)
    other = open_model(queue.stub, feature_limit=5)
    calls = [queue.add(1), queue.add(2, session_id=other)]
    go()

    assert [call.result().times.batch_size for call in calls] == [2, 2]


def test_by_default_each_session_has_a_model_of_its_own_that_is_freed_with_it(
    start, stub_of, manifest_folder
):
    agent = start()
    stub = stub_of(agent)
    ids = [open_model(stub, "Echo") for _ in range(2)]
    assert len(agent.models) == 2
    response = stub.Predict(request(ids[0], 1, 2, 3), timeout=TIMEOUT_S)
    assert (values_of(response), response.times.batch_size) == ([1, 2, 3], 3)

    stub.Close(predict_pb2.CloseRequest(session_id=ids[0]), timeout=TIMEOUT_S)
    assert (manifest_folder / "closed").exists()
    assert len(agent.models) == 1


def test_a_full_queue_is_resource_exhausted_and_the_others_are_answered(queue_of, go):
    queue = queue_of(max_batch_size=8, max_queue=2)
    calls = [queue.add(1), queue.add(2)]
    with pytest.raises(grpc.RpcError) as refused:
        queue.stub.Predict(request(queue.session_id, 3), timeout=TIMEOUT_S)
    go()

    assert refused.value.code() is EXHAUSTED
    assert refused.value.details() == "model Picky 1.0: its queue of 2 requests is full; try again later"
    assert [values_of(call.result()) for call in calls] == [[1], [2]]


def test_a_call_whose_deadline_passed_is_not_predicted(queue_of, go):
    queue = queue_of(max_batch_size=8)
    late = queue.add(1, timeout_s=0.3)
    other = queue.add(2)
    assert late.exception().code() is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_for(lambda: queue.waiting == 1)
    go()

    assert other.result().times.batch_size == 1


def test_a_call_that_was_cancelled_is_not_predicted(queue_of, go):
    queue = queue_of(max_batch_size=8)
    gone, other = queue.add(1), queue.add(2)
    gone.cancel()
    # the agent hears of it in its own time: a later call on the same connection comes after it
    queue.stub.Clock(predict_pb2.ClockRequest(), timeout=TIMEOUT_S)
    go()

    assert other.result().times.batch_size == 1


def test_a_bad_request_does_not_fail_its_neighbours(queue_of, go):
    queue = queue_of(max_batch_size=8)
    calls = [queue.add(1), queue.add(-1), queue.add(2)]
    go()
    good, bad, also_good = (call.result() for call in calls)

    assert (values_of(good), values_of(also_good)) == ([1], [2])
    assert [(f.input_id, f.message) for f in bad.failures] == [
        ("0", "the fake framework takes no negative numbers")
    ]


def test_a_request_of_more_inputs_than_a_batch_may_have_is_an_invalid_argument(start, stub_of):
    stub = stub_of(start(max_batch_size=2))
    with pytest.raises(grpc.RpcError) as refused:
        stub.Predict(request(open_model(stub, "Echo"), 1, 2, 3), timeout=TIMEOUT_S)

    assert refused.value.code() is INVALID
    assert "the request has 3 inputs; at most 2 are accepted" in refused.value.details()


@pytest.mark.parametrize("max_batch_size", [1, 8])
def test_a_model_that_answers_too_few_rows_fails_the_request_and_lives(start, stub_of, max_batch_size):
    stub = stub_of(start(max_batch_size=max_batch_size))
    id_ = open_model(stub, "Short")
    for _ in range(2):
        response = stub.Predict(request(id_, 1, 2), timeout=TIMEOUT_S)
        assert [f.message for f in response.failures] == [
            "output data has shape [1, 1, 4, 4] for a batch of 2 inputs"
        ] * 2


def test_an_answer_that_is_no_number_fails_its_input_alone(start, stub_of):
    stub = stub_of(start(max_batch_size=8))
    response = stub.Predict(request(open_model(stub, "Mean"), 1, float("nan"), 2), timeout=TIMEOUT_S)

    assert list(response.input_ids) == ["0", "2"]
    assert [f.message for f in response.failures] == ["the model's output is not a finite number"]


def test_a_crash_of_the_predictor_is_told_without_its_details_and_the_agent_lives(start, stub_of, caplog):
    stub = stub_of(start(max_batch_size=8))
    for _ in range(2):
        with pytest.raises(grpc.RpcError) as failed:
            stub.Predict(request(open_model(stub, "Crashing"), 1), timeout=TIMEOUT_S)
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert "secret detail" not in failed.value.details()
    assert values_of(stub.Predict(request(open_model(stub, "Echo"), 1), timeout=TIMEOUT_S)) == [1]


def test_many_clients_at_once_get_each_their_own(start):
    agent = start(max_batch_size=16, max_queue_delay_ms=1.0)

    def ask(client):
        with open_remote_agent(agent.address, "Mean") as remote:
            for value in range(client * 1000, client * 1000 + 40):
                array = batch(*range(value, value + 1 + value % 3))
                result = remote.predict_tensor(array)
                expected = np.sort(mean_scores(array), axis=1)[:, ::-1]
                np.testing.assert_array_equal(result.outputs.probabilities, expected)
        return True

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(ask, range(12)))
    assert len(agent.models) == 1


def test_the_errors_keep_their_classes_at_the_client(queue_of, go):
    queue = queue_of(max_batch_size=2, max_queue=1)
    address = queue.agent.address
    with open_remote_agent(address, "Picky", remote=RemoteOptions(call_timeout_s=0.2)) as remote:
        with pytest.raises(InputError):
            remote.predict_tensor(batch(1, 2, 3))
        with pytest.raises(DeadlineError, match=f"^agent {address}: did not answer in time$"):
            remote.predict_tensor(batch(1))
        wait_for(lambda: queue.waiting == 0)
        waiting = queue.add(5)
        with pytest.raises(QueueFullError):
            remote.predict_tensor(batch(1))
        go()
        assert values_of(waiting.result()) == [5]


def test_a_load_target_tells_the_queue_and_the_batch_of_a_remote_agent(start, manifest_folder, go):
    agent = start(max_batch_size=8)
    answers = Answers()
    with (
        open_remote_agent(agent.address, "Picky") as remote,
        RemoteTarget(remote, PreparedInputs.of_batch({"data": batch(1, 2, 3)}, "numbers")) as target,
    ):
        target.begin(answers)
        target.submit(0)
        wait_for((manifest_folder / "begun").exists)
        for query in (1, 2, 3):
            target.submit(query)
        wait_for(lambda: [model.waiting for model in agent.models.loaded] == [3])
        go()
        target.end(TIMEOUT_S)

    assert {query: told["batch_size"] for query, told in answers.told.items()} == {0: 1, 1: 3, 2: 3, 3: 3}
    assert all(told["queue_ns"] >= 0 and told["predict_ns"] > 0 for told in answers.told.values())


class Answers:
    """Keeps what a load target tells."""

    def __init__(self):
        self.told = {}

    def answered(self, query, done_ns, **told):
        self.told[query] = told

    def failed(self, query, done_ns, reason):
        raise AssertionError(reason)


def test_a_stopping_agent_answers_what_waits(queue_of, go):
    queue = queue_of(max_batch_size=8)
    calls = [queue.first, queue.add(1)]
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(queue.agent.stop, 20)
        go()
        assert stopped.result(TIMEOUT_S)

    assert [values_of(call.result()) for call in calls] == [[0], [1]]
    assert len(queue.agent.models) == 0
