"""Instances, threads and batching of single models: in an agent's options, and in a client's loads."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import tritonclient.grpc as triton
from fake_framework import SCRIPT, wait_for
from open_inference import images, tensor_of
from rest_client import Rest

from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.server.v2.model_messages import read_load_parameters
from inferometer.agent.server.v2.repository import Repository
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ModelSettings, ServingOptions
from inferometer.client.remote.address import KServeAddress
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.kserve.control import ModelControl
from inferometer.client.remote.kserve.server import KServeConnection
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

DIRECTLY = {"max_batch_size": 10_000, "instances": 1, "delay_us": None, "threads": "1"}
CONFIG = {
    "max_batch_size": 8,
    "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
    "dynamic_batching": {"max_queue_delay_microseconds": 1500, "preferred_batch_size": [4]},
    "parameters": {"intra_op_thread_count": {"string_value": "2"}},
}
CHANGED = {"max_batch_size": 8, "instances": 2, "delay_us": 1500, "threads": "2"}


@pytest.fixture
def agent(start_agent):
    own = {"echo": ModelSettings(BatchingOptions(max_batch_size=4, instances=3), threads=2)}
    serving = ServingOptions(session=SessionOptions(threads=1), by_model=own)
    return start_agent(serving=serving, http_port=0)


@pytest.fixture
def client(agent):
    with triton.InferenceServerClient(agent.address) as found:
        yield found


def told(client, model):
    """How the model configuration says that a model is served."""
    config = client.get_model_config(model).config
    [group] = config.instance_group
    batching = config.dynamic_batching if config.HasField("dynamic_batching") else None
    return {
        "max_batch_size": config.max_batch_size,
        "instances": group.count,
        "delay_us": batching and batching.max_queue_delay_microseconds,
        "threads": config.parameters["intra_op_thread_count"].string_value,
    }


@contextmanager
def clients_of(address, count=6) -> Iterator[list]:
    """Clients that send requests to the scripted model all the time; yields their answers and errors."""
    found, ended = [], threading.Event()

    def ask(number):
        with triton.InferenceServerClient(address) as client:
            batch = images(1, seed=number)
            while not ended.is_set():
                try:
                    found.append(
                        (client.infer("Scripted", [tensor_of(batch)]).as_numpy("data") == batch).all()
                    )
                except triton.InferenceServerException as error:
                    found.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for each in threads:
        each.start()
    try:
        yield found
    finally:
        ended.set()
        for each in threads:
            each.join()


def further(answers, count):
    """Waits for further answers."""
    least = len(answers) + count
    wait_for(lambda: len(answers) >= least)


def test_a_model_is_served_as_the_options_say_for_it(agent, client):
    assert told(client, "Mean") == DIRECTLY
    assert told(client, "Echo") == {"max_batch_size": 4, "instances": 3, "delay_us": 0, "threads": "2"}
    with open_remote_agent(agent.address, "Echo") as remote:  # over the agent's own protocol, too
        assert remote.description.threads == 2
        assert [len(model._predictors) for model in agent.models.loaded if model.manifest.name == "Echo"] == [
            3
        ]


@pytest.mark.parametrize("wire", ["grpc", "http"])
def test_a_load_changes_how_a_model_is_served_until_it_is_unloaded(agent, client, wire):
    if wire == "grpc":
        client.load_model("Mean", config=json.dumps(CONFIG))
    else:
        with closing(Rest(agent.http_url)) as ask:
            body = {"parameters": {"config": json.dumps(CONFIG)}}
            assert ask("POST", "/v2/repository/models/Mean/load", body).status == 200

    assert told(client, "Mean") == CHANGED
    assert list(client.get_model_config("Mean").config.dynamic_batching.preferred_batch_size) == [4]
    [model] = agent.models.loaded
    with open_remote_agent(agent.address, "Mean") as remote:
        assert remote.description.threads == 2
        assert agent.models.loaded == (model,)  # which the session shares
        client.unload_model("Mean")
        assert told(client, "Mean") == DIRECTLY
        remote.predict_tensor(images(1))  # with the copy of the model that it has opened
    with open_remote_agent(agent.address, "Mean") as remote:
        assert remote.description.threads == 1


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"max_batch_size": "16"}, {"max_batch_size": 16}),  # as protobuf's JSON allows
        ({"maxBatchSize": 0}, {}),
        ({"max_batch_size": 16, "dynamic_batching": {"preferred_batch_size": [1]}}, {"max_batch_size": 16}),
        ({"dynamic_batching": {"preferred_batch_size": [1]}}, {}),
        ({"max_batch_size": 2, "dynamic_batching": {}}, {"max_batch_size": 2, "delay_us": 0}),
        ({"max_batch_size": 10_000, "dynamic_batching": {}}, {"delay_us": 0}),  # as large as a request may be
        ({"instance_group": [{}]}, {}),
        ({"parameters": {"threads": {"string_value": "3"}}}, {"threads": "3"}),
    ],
)
def test_what_a_configuration_lacks_is_as_the_agent_serves_it(client, config, expected):
    client.load_model("Mean", config=json.dumps(CONFIG))
    client.load_model("Mean", config=json.dumps(config))
    assert told(client, "Mean") == DIRECTLY | expected


def test_a_size_without_batching_limits_a_request(client):
    client.load_model("Mean", config='{"max_batch_size": 2}')
    assert len(client.infer("Mean", [tensor_of(images(2))]).as_numpy("scores")) == 2
    with pytest.raises(triton.InferenceServerException, match="at most 2"):
        client.infer("Mean", [tensor_of(images(3))])


@pytest.mark.parametrize(
    ("config", "batch", "inputs"),
    [
        ({}, 1, 10_000),
        ({"max_batch_size": 100}, 1, 100),  # which limits a request
        ({"max_batch_size": 100, "dynamic_batching": {}}, 100, 100),
        ({"max_batch_size": 100, "dynamic_batching": CONFIG["dynamic_batching"]}, 100, 100),
    ],
)
def test_priorities_are_not_read_back_as_batching(start_agent, config, batch, inputs):
    options = BatchingOptions(max_queue_delay_ms=2, priority_levels=2, default_priority_level=2)
    served = start_agent(serving=ServingOptions(options))

    def batches():
        [model] = served.models.loaded
        return model.options.max_batch_size, model.options.priority_levels

    with triton.InferenceServerClient(served.address) as client:
        client.load_model("Mean", config=json.dumps(config))
        before = client.get_model_config("Mean").config
        assert (before.max_batch_size, before.dynamic_batching.priority_levels) == (inputs, 2)
        assert batches() == (batch, 2)
        address = KServeAddress.parse(f"kserve://{served.address}")
        with closing(KServeConnection(address, RemoteOptions())) as connection:
            control = ModelControl(connection, "Mean")
            assert client.get_model_config("Mean").config == before
            assert batches() == (batch, 2)
            control.serve(None, 8, 0.0, 1)
            assert batches() == (8, 2)
            control.close()
        assert client.get_model_config("Mean").config == before
        assert batches() == (batch, 2)


def test_a_load_that_fails_changes_nothing(client):
    client.load_model("Mean", config=json.dumps(CONFIG))
    with pytest.raises(triton.InferenceServerException, match="unknown parameter"):
        client.load_model("Mean", config='{"parameters": {"thread": {"string_value": "1"}}}')
    assert told(client, "Mean") == CHANGED


def test_loads_under_load_lose_nothing_and_keep_the_statistics(agent, client, manifest_folder):
    (manifest_folder / SCRIPT).write_text(json.dumps({"service_s": 0.002}))
    with clients_of(agent.address) as answers:
        for number in range(6):
            further(answers, 40)
            client.load_model("Scripted", config=json.dumps(CONFIG if number % 2 == 0 else {}))
            assert told(client, "Scripted") == (CHANGED if number % 2 == 0 else DIRECTLY)
        further(answers, 40)

    assert set(answers) == {True}
    [statistics] = client.get_inference_statistics("Scripted").model_stats
    assert statistics.inference_stats.success.count == statistics.inference_count == len(answers)
    wait_for(lambda: len(agent.models.loaded) == len(agent.models) == 1)


def test_a_request_that_a_load_overtakes_is_answered_by_the_new_copy(agent, client, monkeypatch):
    lease_loaded, loads = Repository.lease_loaded, [CONFIG]

    def overtaken(repository, found):
        while loads:  # after the request has found the model
            config = pb.ModelRepositoryParameter(string_param=json.dumps(loads.pop()))
            repository.load("Mean", read_load_parameters({"config": config}, repository.defaults("Mean")))
        return lease_loaded(repository, found)

    client.load_model("Mean")
    monkeypatch.setattr(Repository, "lease_loaded", overtaken)
    client.infer("Mean", [tensor_of(images(1))])
    assert [model.options.instances for model in agent.models.loaded] == [CHANGED["instances"]]
