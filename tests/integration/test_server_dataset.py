"""The ``Dataset`` method: an evaluation on the agent, with its progress."""

import json
import threading

import grpc
import pytest
from dataset_client import evaluate_dataset
from fake_framework import wait_for

from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.server.native.predict_service import DatasetOrder
from inferometer.manifests.errors import (
    AgentError,
    ConfigurationError,
    UnknownDatasetError,
    UnknownModelError,
)
from inferometer.protos.inferometer.v1 import predict_pb2
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub

ORDER = DatasetOrder(
    dataset_name="numbers",
    dataset_category=None,
    batch_size=8,
    partition_list_size=16,
    num_file_parts=3,
    warmup_num_file_parts=0,
    feature_limit=2,
    fail_on_error=True,
)
MEAN = ("Mean", None, None)


def test_evaluation_is_made_with_what_was_asked_for_and_tells_its_progress(start_agent):
    ran = []
    heard = threading.Event()

    def runner(session, order, on_progress, stop_requested):
        ran.append((session.description.manifest.name, order))
        on_progress(8, 48)
        assert heard.wait(30)
        on_progress(48, 48)
        return json.dumps({"id": "e1", "stopped": stop_requested()})

    progress = []

    def on_progress(done, total):
        progress.append((done, total))
        heard.set()

    agent = start_agent(parts={"dataset_runner": runner})
    options = SessionOptions(feature_limit=2)
    answer = evaluate_dataset(agent.address, MEAN, options, ORDER, on_progress=on_progress)
    assert json.loads(answer) == {"id": "e1", "stopped": False}
    assert ran == [("Mean", ORDER)]
    assert progress[0] == (8, 48)


def test_error_of_the_evaluation_reaches_the_client_and_the_session_is_closed(start_agent, manifest_folder):
    def runner(session, order, on_progress, stop_requested):
        raise UnknownDatasetError.of(order.dataset_name, ["digits"])

    agent = start_agent(parts={"dataset_runner": runner})
    with pytest.raises(UnknownDatasetError, match='unknown dataset "numbers"; known: digits'):
        evaluate_dataset(agent.address, MEAN, SessionOptions(), ORDER)
    wait_for((manifest_folder / "closed").exists)


def test_unknown_model_is_told(start_agent):
    agent = start_agent(parts={"dataset_runner": lambda *_: "{}"})
    with pytest.raises(UnknownModelError, match='did you mean "Mean"'):
        evaluate_dataset(agent.address, ("Maen", None, None), SessionOptions(), ORDER)


def test_agent_without_datasets_says_so(start_agent):
    with pytest.raises(AgentError, match="this agent does not evaluate datasets"):
        evaluate_dataset(start_agent().address, MEAN, SessionOptions(), ORDER)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"num_file_parts": -2}, "num_file_parts is -2"),
        ({"num_file_parts": 0}, "num_file_parts is 0"),
    ],
)
def test_order_that_makes_no_sense_is_refused(start_agent, channel_to, fields, message):
    agent = start_agent(parts={"dataset_runner": lambda *_: "{}"})
    asked = predict_pb2.DatasetRequest(**{"batch_size": 1, **fields}, model={"model_name": "Mean"})
    with pytest.raises(grpc.RpcError) as error:
        list(PredictServiceStub(channel_to(agent.address)).Dataset(asked, timeout=30))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert message in error.value.details()


def test_what_is_left_out_has_its_default(start_agent, channel_to):
    orders = []

    def runner(session, order, on_progress, stop_requested):
        orders.append(order)
        return "{}"

    agent = start_agent(parts={"dataset_runner": runner})
    asked = predict_pb2.DatasetRequest(batch_size=7, model={"model_name": "Mean"})
    (answer,) = PredictServiceStub(channel_to(agent.address)).Dataset(asked, timeout=30)
    assert answer.evaluation_json == "{}"
    assert orders == [DatasetOrder(None, None, 7, 7, -1, 1, 0, False)]


def test_client_that_goes_away_stops_the_evaluation(start_agent, channel_to):
    stopped = threading.Event()

    def runner(session, order, on_progress, stop_requested):
        on_progress(0, 1)
        wait_for(stop_requested)
        stopped.set()
        raise ConfigurationError("nobody hears this")

    agent = start_agent(parts={"dataset_runner": runner})
    asked = predict_pb2.DatasetRequest(batch_size=1, model={"model_name": "Mean"})
    stream = PredictServiceStub(channel_to(agent.address)).Dataset(asked, timeout=60)
    assert next(stream).progress.total_inputs == 1
    stream.cancel()
    assert stopped.wait(30)
