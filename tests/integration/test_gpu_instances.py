"""Instances of a model on several GPUs: which each takes, and what tells it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tritonclient.grpc as triton
from agent_client import TIMEOUT_S
from fake_framework import gpu_registry
from open_inference import images, tensor_of

from inferometer.agent.hardware.environment import CPU, Device
from inferometer.agent.inference.session import Session, SessionOptions, open_session, select_model
from inferometer.agent.server.server import AgentServer
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_model import ServedModel
from inferometer.agent.serving.served_models import ModelSettings, ServingOptions
from inferometer.agent.tracing.recorder import SpanRecorder, TraceContext, TraceLevel, TraceScope
from inferometer.client.remote.address import KServeAddress
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.kserve.control import ModelControl
from inferometer.client.remote.kserve.server import KServeConnection
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.client.remote.native.connection import ask_status
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import DeviceError

BOTH = Device.gpus("0,1")


@pytest.fixture
def agent(start_agent: Callable[..., AgentServer]) -> AgentServer:
    """Echo and Failing have three instances on both GPUs; all others have one, on GPU 1."""
    settings = ModelSettings(BatchingOptions(instances=3), device=BOTH)
    own = {"echo": settings, "failing": settings}
    serving = ServingOptions(session=SessionOptions(device=Device.gpus("1")), by_model=own)
    return start_agent(serving=serving, registry=gpu_registry())


@pytest.fixture
def client(agent: AgentServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(agent.address) as found:
        yield found


@pytest.fixture
def open_here(manifest_folder: Path) -> Callable[..., Session]:
    def opened(device: Device, kind: str = "GpuPredictor") -> Session:
        registry = gpu_registry(kind)
        manifest = select_model(Catalog([manifest_folder]), registry, "Echo", None)
        return open_session(manifest, SessionOptions(device=device, threads=1), registry)

    return opened


def told(client: triton.InferenceServerClient, model: str) -> tuple[str, dict[tuple[int, ...], int]]:
    """The device of a model, and its instances on each GPU, as its configuration tells them."""
    config = client.get_model_config(model).config
    kinds = {group.kind for group in config.instance_group}
    device = config.parameters["device"].string_value
    assert kinds == {config.instance_group[0].KIND_CPU if device == "cpu" else 1}
    return device, {tuple(group.gpus): group.count for group in config.instance_group}


@pytest.mark.parametrize("kind", ["GpuPredictor", "ApartGpuPredictor"])  # threads, and processes
@pytest.mark.parametrize("gpus", ["0,1", "1,0,0", "1,1"])
def test_each_instance_predicts_on_its_gpu(open_here: Callable[..., Session], gpus: str, kind: str) -> None:
    session = open_here(Device.gpus(gpus), kind)
    sessions = [session, *(session.open_another(number) for number in (1, 2, 3))]
    found = [int(each.infer({"data": images(1)}).outputs["gpu"].item()) for each in sessions]
    for each in sessions:
        each.close()

    given = [int(index) for index in gpus.split(",")]
    assert found == [given[number % len(given)] for number in range(4)]
    assert str(session.description.device) == f"gpu:{gpus}"


def test_the_instances_take_batches_of_one_queue(open_here: Callable[..., Session]) -> None:
    session = open_here(BOTH)
    model = ServedModel(session, BatchingOptions(instances=2), open_instance=session.open_another)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: model.infer({"data": images(1)}).outputs["gpu"].item(), range(40)))
    model.close()
    assert model.wait_closed(TIMEOUT_S)

    assert min(Counter(answers)[gpu] for gpu in (0, 1)) > 10


def test_the_spans_of_an_instance_tell_its_gpu(open_here: Callable[..., Session]) -> None:
    session = open_here(BOTH)
    with session, session.open_another(1) as second:
        recorder = SpanRecorder(TraceContext.new(), TraceLevel.MODEL_TRACE)
        second.predict_tensor({"data": images(1)}, TraceScope.top(recorder))

    devices = [kind.attribute("device") for chunk in recorder.chunks() for kind in chunk.kinds]
    assert "gpu:1" in devices
    assert "gpu:0,1" not in devices


@pytest.mark.parametrize("gpus", ["2", "0,2", "0,0,9"])
def test_a_gpu_that_does_not_exist_is_refused_before_any_instance_is_open(
    open_here: Callable[..., Session], gpus: str
) -> None:
    with pytest.raises(DeviceError) as raised:
        open_here(Device.gpus(gpus))

    assert str(raised.value) == f"Fake cannot use gpu:{gpus[-1]}: the number of GPUs is 2"


def test_what_an_agent_tells_of_its_gpus(agent: AgentServer, client: triton.InferenceServerClient) -> None:
    assert told(client, "Echo") == ("gpu:0,1", {(0,): 2, (1,): 1})
    assert told(client, "Mean") == ("gpu:1", {(1,): 1})
    answers = [client.infer("Echo", [tensor_of(images(1))]).as_numpy("gpu").item() for _ in range(8)]

    assert set(answers) <= {0, 1}
    status = ask_status(agent.address, TIMEOUT_S)
    assert [
        (each["name"], each["device"], each["instances"], each["instances_alive"])
        for each in status.details["models"]
    ] == [("Echo", "gpu:0,1", 3, 3), ("Mean", "gpu:1", 1, 1)]


def test_a_lost_gpu_is_told_alone_and_makes_the_agent_unfit(
    agent: AgentServer, client: triton.InferenceServerClient
) -> None:
    with pytest.raises(triton.InferenceServerException, match="fallen off the bus"):
        client.infer("Failing", [tensor_of(images(1))])

    status = ask_status(agent.address, TIMEOUT_S)
    assert status.health == "NOT_SERVING"
    [trouble] = status.details["troubles"]
    assert re.match(r"(device )?gpu:[01] is lost: the GPU has fallen", trouble)


@pytest.mark.parametrize(
    ("asked", "found"), [("0", "gpu:0,1"), ("1", "gpu:1"), ("1,0,1,0", "gpu:1,0,1"), ("", "cpu")]
)
def test_a_client_that_asks_for_the_first_gpu_gets_the_instances_on_all(
    agent: AgentServer, asked: str, found: str
) -> None:
    options = SessionOptions(device=Device.gpus(asked) if asked else CPU)
    with open_remote_agent(agent.address, "Echo", options=options) as remote:
        assert str(remote.description.device) == found


def test_a_load_sets_the_gpus(client: triton.InferenceServerClient) -> None:
    device = {"parameters": {"device": {"string_value": "gpu:1,0"}}}
    for count, groups in ((1, {(1,): 1}), (2, {(1,): 1, (0,): 1}), (5, {(1,): 3, (0,): 2})):
        client.load_model("Mean", config=json.dumps({**device, "instance_group": [{"count": count}]}))
        assert told(client, "Mean") == ("gpu:1,0"[: 3 + 2 * len(groups)], groups)
    two = {"instance_group": [{"count": 2}]}
    with pytest.raises(triton.InferenceServerException, match="cannot use gpu:7: the number of GPUs is 2"):
        client.load_model(
            "Mean", config=json.dumps({"parameters": {"device": {"string_value": "gpu:0,7"}}, **two})
        )
    assert told(client, "Mean") == ("gpu:1,0", {(1,): 3, (0,): 2})


@pytest.mark.parametrize(
    ("groups", "device", "found"),
    [
        ([{"gpus": [1]}], "gpu:1", {(1,): 1}),
        ([{"gpus": [1, 0], "count": 2, "kind": "KIND_GPU"}], "gpu:1,0", {(1,): 2, (0,): 2}),
        ([{"gpus": [0], "count": 3}, {"gpus": [1]}], "gpu:0,1,0,0", {(0,): 3, (1,): 1}),
        ([{"gpus": [0], "count": 2}, {"gpus": [1], "count": 2}], "gpu:0,1", {(0,): 2, (1,): 2}),
    ],
)
def test_the_groups_of_a_load_set_the_gpus_as_in_triton(
    client: triton.InferenceServerClient,
    groups: list[dict[str, object]],
    device: str,
    found: dict[tuple[int, ...], int],
) -> None:
    client.load_model("Mean", config=json.dumps({"instance_group": groups}))

    assert told(client, "Mean") == (device, found)


def test_a_model_keeps_its_gpus_while_it_is_served_otherwise_for_a_time(
    agent: AgentServer, client: triton.InferenceServerClient
) -> None:
    before = told(client, "Echo")
    server = KServeConnection(KServeAddress.parse(f"kserve://{agent.address}"), RemoteOptions())
    control = ModelControl(server, "Echo", owned=True)
    found = []
    for count in (1, 2, 4):
        control.serve(None, 1, 0.0, count)
        found.append(told(client, "Echo"))
    control.close()

    assert found == [("gpu:0", {(0,): 1}), ("gpu:0,1", {(0,): 1, (1,): 1}), ("gpu:0,1", {(0,): 2, (1,): 2})]
    assert told(client, "Echo") == before


def test_a_model_keeps_a_gpu_that_is_not_the_first(
    agent: AgentServer, client: triton.InferenceServerClient
) -> None:
    device = {"parameters": {"device": {"string_value": "gpu:1"}}}
    client.load_model("Mean", config=json.dumps({**device, "instance_group": [{"count": 1}]}))
    server = KServeConnection(KServeAddress.parse(f"kserve://{agent.address}"), RemoteOptions())
    control = ModelControl(server, "Mean", owned=True)
    control.serve(None, 1, 0.0, 2)
    found = told(client, "Mean")
    control.close()

    assert found == ("gpu:1", {(1,): 2})
    assert told(client, "Mean") == ("gpu:1", {(1,): 1})
