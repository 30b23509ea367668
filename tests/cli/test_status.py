"""``agent status``: the health of a served agent, and its exit code."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tests.cli.conftest import Agent, served


@contextmanager
def server_with_health(status: int) -> Iterator[str]:
    """A server that has nothing but the health service, and the address of it."""
    servicer = health.HealthServicer()
    servicer.set("", status)
    server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def test_a_served_agent_is_serving_and_does_not_ask_for_its_secret(agent: Agent) -> None:
    with served("--secret=open sesame") as (address, process):
        answer = agent("status", address)
        assert (answer.code, answer.stdout, answer.stderr) == (0, "SERVING\n", "")
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        assert agent("status", address).code == 6


@pytest.mark.parametrize("name", ["NOT_SERVING", "UNKNOWN"])
def test_another_health_is_printed_and_is_a_failure(agent: Agent, name: str) -> None:
    with server_with_health(health_pb2.HealthCheckResponse.ServingStatus.Value(name)) as address:
        answer = agent("status", address)
    assert (answer.code, answer.stdout) == (1, f"{name}\n")


def test_a_health_that_the_protocol_does_not_have_is_an_error(agent: Agent) -> None:
    with server_with_health(77) as address:
        answer = agent("status", address)
    assert answer.code == 6
    assert "unknown health 77" in answer.error


def test_an_agent_that_is_not_there_is_an_error_that_names_it(agent: Agent) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = agent("status", address)
    assert answer.code == 6
    assert address in answer.error


def test_an_agent_that_does_not_answer_is_waited_for_as_long_as_was_said(agent: Agent) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        answer = agent("status", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout_s=0.2")
    assert answer.code == 6
    assert "did not answer in time" in answer.error


@pytest.mark.parametrize("arguments", [(), ("nowhere",), ("host:0",), ("host:1", "--timeout_s=0")])
def test_what_makes_no_sense_is_refused(agent: Agent, arguments: tuple[str, ...]) -> None:
    assert agent("status", *arguments).code == 2


def test_wrong_secret_is_said_beside_the_health(agent: Agent, secret_agent: str) -> None:
    for arguments in ((), ("-f", "json")):
        answer = agent("status", secret_agent, "--secret=another", *arguments)
        assert answer.code == 0
        assert "SERVING" in answer.stdout
        assert answer.error == f"agent {secret_agent}: its status is unknown; this is not its secret"


def test_what_an_agent_has_loaded_is_told_to_who_shows_its_secret(agent: Agent) -> None:
    with served("--secret=open sesame") as (address, _):
        loaded = agent(
            *("predict", "dataset", "--framework_name=ONNXRuntime", "--num_file_parts=1", "--publish=false"),
            *(f"--agent={address}", "--secret=open sesame"),
        )
        assert loaded.code == 0, loaded.stderr
        told = agent("status", address, "--secret=open sesame")
        document = json.loads(agent("status", address, "--secret=open sesame", "-f", "json").stdout)
        untold = json.loads(agent("status", address, "-f", "json").stdout)
    assert told.code == 0
    first, second, *_ = told.stdout.splitlines()
    assert first == "SERVING"
    assert second.startswith(f"inferometer {document['version']}, up 0:00:")
    assert document["health"] == "SERVING"
    assert document["uptime_s"] > 0
    assert document["resident_memory_bytes"] > 10_000_000
    assert (document["open_sessions"], document["models"], document["troubles"]) == (0, [], [])
    assert untold == {"health": "SERVING"}
