"""Clients that disappear: the agent releases what they held."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from fake_framework import FakePredictor, wait_for
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from inferometer.agent.server.security import binding
from inferometer.agent.server.server import AgentServer
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
def holder() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a client that keeps a stream open."""
    started: list[subprocess.Popen[str]] = []

    def start(address: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, address], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_stream_of_a_client_that_stands_still_ends_and_its_session_is_closed(
    start_agent: Start, holder: Callable[[str], subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "_KEEPALIVE_MS", 500)
    monkeypatch.setattr(binding, "_KEEPALIVE_TIMEOUT_MS", 500)
    agent = start_agent(session_idle_s=1)
    process = holder(agent.address)
    assert process.stdout is not None
    assert process.stdout.readline() == "streams\n"
    assert agent.load.sessions == 1
    process.send_signal(signal.SIGSTOP)  # its machine still acknowledges what the agent sends
    wait_for(lambda: agent.load.sessions == 0)
