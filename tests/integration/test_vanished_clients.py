"""Clients that disappear: the agent releases what they held."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import grpc
import numpy as np
import pytest
from fake_framework import SIDE, FakePredictor, wait_for
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from inferometer.agent.protocol.messages import encode_batch_request
from inferometer.agent.server import admission
from inferometer.agent.server.native import sessions
from inferometer.agent.server.server import AgentServer
from inferometer.client.remote.address import AgentAddress
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.client.remote.native.connection import Connection
from inferometer.manifests.errors import SessionError, SessionLimitError
from inferometer.protos.inferometer.v1 import predict_pb2
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub

TIMEOUT_S = 20
ROOT = Path(__file__).parents[2]
HOLDER = """
import sys, threading, grpc
from inferometer.protos.inferometer.v1 import predict_pb2, tensor_pb2
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub

def requests(id_):
    batch = tensor_pb2.Tensor(dtype="float32", shape=(1, 1, 4, 4), content=bytes(64))
    yield predict_pb2.PredictStreamRequest(session_id=id_, batch=batch)
    threading.Event().wait()

stub = PredictServiceStub(grpc.insecure_channel(sys.argv[1]))
id_ = stub.Open(predict_pb2.OpenRequest(model_name="Mean"), timeout=20).session_id
answers = stub.PredictStream(requests(id_))
next(answers)
print("streams", flush=True)
next(answers)
"""
OPENER = """
import sys, threading
from inferometer.client.remote.native.agent import open_remote_agent

agent = open_remote_agent(sys.argv[1], "Mean")
print(agent.session_id, flush=True)
threading.Event().wait()
"""
OLD_OPENER = """
import sys, threading, grpc
from inferometer.protos.inferometer.v1 import predict_pb2
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub

stub = PredictServiceStub(grpc.insecure_channel(sys.argv[1]))
print(stub.Open(predict_pb2.OpenRequest(model_name="Mean"), timeout=20).session_id, flush=True)
threading.Event().wait()
"""
Start = Callable[..., AgentServer]


@pytest.mark.parametrize("gone", ["deadline", "cancelled"])
def test_model_whose_client_went_away_while_it_was_loaded_is_closed(
    start_agent: Start, manifest_folder: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    loads, go = threading.Event(), threading.Event()
    load = FakePredictor.load

    def slow(predictor: FakePredictor) -> None:
        loads.set()
        assert go.wait(TIMEOUT_S)
        load(predictor)

    monkeypatch.setattr(FakePredictor, "load", slow)
    agent = start_agent(session_idle_s=600)
    with grpc.insecure_channel(agent.address) as channel:
        call = PredictServiceStub(channel).Open.future(
            predict_pb2.OpenRequest(model_name="Mean"), timeout=0.5 if gone == "deadline" else TIMEOUT_S
        )
        assert loads.wait(TIMEOUT_S)
        if gone == "cancelled":
            call.cancel()
        wait_for(call.done)
        # on one connection, the agent reads this after the news that the other call is gone
        HealthStub(channel).Check(HealthCheckRequest(), timeout=TIMEOUT_S)
        go.set()
        wait_for((manifest_folder / "closed").exists)
        wait_for(lambda: not agent.load.sessions)
        assert not agent.load.models


@pytest.fixture
def holder() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a client, by default one that keeps a stream open."""
    started: list[subprocess.Popen[str]] = []

    def start(address: str, client: str = HOLDER) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", client, address], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_stream_of_a_client_that_stands_still_ends_and_its_session_is_closed(
    start_agent: Start, holder: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_KEEPALIVE_MS", 500)
    monkeypatch.setattr(admission, "_KEEPALIVE_TIMEOUT_MS", 500)
    agent = start_agent(session_idle_s=1)
    process = holder(agent.address)
    assert process.stdout is not None
    assert process.stdout.readline() == "streams\n"
    assert agent.load.sessions == 1
    process.send_signal(signal.SIGSTOP)  # its machine still acknowledges what the agent sends
    wait_for(lambda: agent.load.sessions == 0)


def test_models_of_clients_that_were_killed_make_room_at_once(
    start_agent: Start, holder: Callable[..., subprocess.Popen[str]]
) -> None:
    agent = start_agent(max_sessions=2, http_port=0)
    clients = [holder(agent.address, OPENER) for _ in range(2)]
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline()
    with pytest.raises(SessionLimitError, match="limit of 2 open sessions"):
        open_remote_agent(agent.address, "Mean")
    status, answer = infer(agent)
    assert (status, answer["error"]) == (
        503,
        "model Mean 1.0: the agent has its limit of 2 models loaded, all in use; try again later",
    )
    assert not is_ready(agent)
    for client in clients:
        client.kill()
    # the sessions end with their connections, whose end the system tells the agent
    wait_for(lambda: is_ready(agent))
    began_s = time.monotonic()
    assert infer(agent)[0] == 200
    with open_remote_agent(agent.address, "Mean") as other:
        other.predict_tensor(np.zeros((1, 1, SIDE, SIDE), np.float32))
    assert time.monotonic() - began_s < sessions.GIVES_WAY_S


def test_session_of_a_client_that_vanished_without_a_word_gives_way(
    start_agent: Start, holder: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_KEEPALIVE_MS", 500)
    monkeypatch.setattr(admission, "_KEEPALIVE_TIMEOUT_MS", 500)
    agent = start_agent(max_sessions=1, http_port=0)
    client = holder(agent.address, OPENER)
    assert client.stdout is not None
    assert client.stdout.readline()
    assert not is_ready(agent)
    client.send_signal(signal.SIGSTOP)
    wait_for(lambda: is_ready(agent))
    open_remote_agent(agent.address, "Mean").close()


@pytest.mark.parametrize("caller", ["http", "native"])
def test_idle_session_of_a_client_that_does_not_hold_it_gives_way(
    start_agent: Start,
    holder: Callable[..., subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    caller: str,
) -> None:
    monkeypatch.setattr(sessions, "GIVES_WAY_S", 0.5)
    agent = start_agent(max_sessions=1, http_port=0)
    client = holder(agent.address, OLD_OPENER)
    assert client.stdout is not None
    lost = client.stdout.readline().strip()
    client.kill()
    wait_for(lambda: is_ready(agent))
    if caller == "http":
        assert infer(agent)[0] == 200
    else:
        open_remote_agent(agent.address, "Mean").close()
    with (
        Connection(AgentAddress.parse(agent.address)) as connection,
        pytest.raises(SessionError, match="another one needed its place") as error,
    ):
        connection.predict(encode_batch_request(lost, np.zeros((1, 1, SIDE, SIDE), np.float32)), TIMEOUT_S)
    assert "\n" not in str(error.value)


def test_idle_client_keeps_its_session_while_there_is_room(
    start_agent: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "GIVES_WAY_S", 0.0)
    agent = start_agent(max_sessions=2)
    with open_remote_agent(agent.address, "Mean") as first, open_remote_agent(agent.address, "Mean"):
        first.predict_tensor(np.zeros((1, 1, SIDE, SIDE), np.float32))


def test_held_session_ends_no_stop_late(start_agent: Start) -> None:
    agent = start_agent(grace_s=60.0)
    with open_remote_agent(agent.address, "Mean"):
        began_s = time.monotonic()
        assert agent.stop()
        assert time.monotonic() - began_s < 30


def is_ready(agent: AgentServer) -> bool:
    return _ask(agent, "/v2/health/ready")[0] == 200


def infer(agent: AgentServer) -> tuple[int, dict[str, str]]:
    """Predicts over HTTP; the status and the body of the answer."""
    tensor = {"name": "data", "shape": [1, 1, SIDE, SIDE], "datatype": "FP32", "data": [0.0] * SIDE**2}
    status, body = _ask(agent, "/v2/models/Mean/infer", json.dumps({"inputs": [tensor]}))
    return status, json.loads(body)


def _ask(agent: AgentServer, path: str, body: str | None = None) -> tuple[int, bytes]:
    assert agent.http_url is not None
    host = agent.http_url.removeprefix("http://")
    with closing(HTTPConnection(host, timeout=TIMEOUT_S)) as connection:
        connection.request("GET" if body is None else "POST", path, body)
        response = connection.getresponse()
        return response.status, response.read()
