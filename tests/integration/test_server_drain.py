"""Stopping an agent under load: each call is answered, or refused so that clients may retry."""

import asyncio
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress

import grpc
import pytest
from agent_client import Client, outcome
from closed_loops import REQUEST, ClosedLoops
from fake_framework import wait_for
from grpc_health.v1 import health_pb2
from open_inference import images
from rest_client import HEADER_LENGTH, connect, raw_request, received

from inferometer.agent.server import rpc
from inferometer.agent.server import server as servers
from inferometer.agent.server.rest import http_connection

CLIENTS = 24


def closed_loop(address, outcomes, begun):
    """Sends call after call over a connection of its own, until one fails."""
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        client = Client(channel)
        code = grpc.StatusCode.OK
        while code is grpc.StatusCode.OK:
            sent_s = time.monotonic()
            code = outcome(client, "Mean")
            outcomes.append((sent_s, code))
            begun.set()


@pytest.mark.parametrize("drain_s", [0.0, 1.0])
def test_no_call_is_lost(spawn_agent, drain_s):
    agent = spawn_agent(drain_s=drain_s)
    outcomes, threads = [], []
    for _ in range(CLIENTS):
        begun = threading.Event()
        thread = threading.Thread(target=closed_loop, args=(agent.address, outcomes, begun))
        thread.start()
        threads.append(thread)
        assert begun.wait(30)
    with grpc.insecure_channel(agent.address) as channel:
        statuses = Client(channel).watched()
        assert next(statuses) == health_pb2.HealthCheckResponse.SERVING
        agent.process.send_signal(signal.SIGTERM)
        assert next(statuses) == health_pb2.HealthCheckResponse.NOT_SERVING
    unhealthy_s = time.monotonic()
    for thread in threads:
        thread.join(30)
    stdout, _ = agent.process.communicate(timeout=30)
    refused = [sent_s for sent_s, code in outcomes if code is not grpc.StatusCode.OK]

    assert (agent.process.returncode, stdout) == (0, "stopped\n")
    assert {code for _, code in outcomes} == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
    assert len(refused) == CLIENTS
    if drain_s:
        assert min(refused) > unhealthy_s
        assert any(sent_s > unhealthy_s for sent_s, code in outcomes if code is grpc.StatusCode.OK)


@pytest.mark.parametrize("drain_s", [0.0, 0.5])
def test_clients_that_go_on_are_answered_or_refused_until_the_end(spawn_agent, drain_s):
    agent = spawn_agent(drain_s=drain_s)

    async def stop():
        agent.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(agent.process.communicate, timeout=30)
        assert agent.process.returncode == 0

    outcomes = asyncio.run(ClosedLoops(agent.address, agent.http_url, CLIENTS).run(stop))
    right = {200, 503, grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
    assert {outcome for _, outcome in outcomes} == right, outcomes


def closed(url):
    """Whether nobody listens any more."""
    try:
        connect(url).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.fixture
def stopping(start_agent, manifest_folder):
    """An agent that stops, with a call under way."""
    agent = start_agent(http_port=0)
    with ThreadPoolExecutor(2) as pool, grpc.insecure_channel(agent.address) as channel:
        client = Client(channel)
        call = pool.submit(outcome, client, "Waiting")
        wait_for((manifest_folder / "begun").exists)

        def stop(grace_s):
            return pool.submit(agent.stop, grace_s)

        yield agent, stop, call
        (manifest_folder / "go").touch()


def last_answer(connection):
    """The answer to a request, after which the server closes."""
    connection.sendall(REQUEST)
    found = received(connection)
    assert b"\r\nconnection: close\r\n" in found
    return int(found[9:12])


def test_each_response_of_an_agent_that_stops_is_the_last_of_its_connection(stopping, manifest_folder):
    agent, stop, call = stopping

    def is_refused():
        with connect(agent.http_url) as connection:
            connection.sendall(REQUEST)
            return connection.recv(65536).startswith(b"HTTP/1.1 503")

    with connect(agent.http_url) as idle:
        idle.sendall(REQUEST)
        assert b"connection: close" not in idle.recv(65536)
        stopped = stop(20.0)
        wait_for(is_refused)
        assert last_answer(idle) == 503
        with connect(agent.http_url) as later:
            assert last_answer(later) == 503
    (manifest_folder / "go").touch()
    assert (call.result(30), stopped.result(30)) == (grpc.StatusCode.OK, True)


def test_request_that_is_on_its_way_when_the_agent_stops_is_answered(stopping, manifest_folder, monkeypatch):
    monkeypatch.setattr(http_connection, "_LAST_HEAD_S", 30.0)  # of a machine that is busy
    agent, stop, _ = stopping
    with connect(agent.http_url) as connection:
        connection.sendall(REQUEST[:20])
        server = agent._http._server
        wait_for(lambda: any(not getattr(each, "_is_received", True) for each in server.connections))
        stopped = stop(20.0)
        (manifest_folder / "go").touch()
        wait_for(lambda: closed(agent.http_url))
        connection.sendall(REQUEST[20:])
        found = received(connection)
    assert (found[:12], b"connection: close" in found) == (b"HTTP/1.1 503", True)
    assert stopped.result(30)


@pytest.mark.parametrize("turns", range(4))
def test_connection_that_is_accepted_before_the_agent_stops_listening_is_answered(start_agent, turns):
    agent = start_agent(http_port=0)

    async def connect_and_stop():
        connection = connect(agent.http_url)
        connection.sendall(REQUEST)
        for _ in range(turns):  # in the second one, the event loop accepts the connection
            await asyncio.sleep(0)
        await agent._http._server.stop_listening()
        return connection

    with agent._server.begin(connect_and_stop()).result(30) as connection:
        try:
            found = connection.recv(65536)
        except ConnectionResetError:
            found = b""
    assert found.startswith(b"HTTP/1.1 200") == (turns >= 2)


LARGE = images(12, side=512)


@pytest.fixture
def large_answer(start_agent, monkeypatch):
    """An agent that leaves soon after its grace period, and a connection with a response of 12 MB to read."""
    monkeypatch.setattr(servers, "_LEAVING_S", 0.05)
    monkeypatch.setattr(rpc, "_CLEANUP_S", 0.05)
    agent = start_agent(http_port=0)
    lines = f"POST /v2/models/Large/infer HTTP/1.1\nHost: localhost\nContent-Length: {LARGE.nbytes}"
    with connect(agent.http_url) as connection:
        connection.sendall(raw_request(f"{lines}\n{HEADER_LENGTH}: 0", LARGE.tobytes()))
        yield agent, connection


def test_response_that_is_read_slowly_is_written_to_its_end(large_answer):
    agent, connection = large_answer
    with ThreadPoolExecutor(1) as pool:
        begin = connection.recv(1024)
        stopped = pool.submit(agent.stop, 20.0)
        wait_for(lambda: closed(agent.http_url))
        with suppress(FutureTimeoutError):
            stopped.result(0.5)
        with connection.makefile("rb") as rest:
            head, _, body = (begin + rest.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"content-length: %d\r\n" % len(body) in head
        assert stopped.result(30)


def test_connection_that_outlasts_the_grace_period_is_closed(large_answer):
    agent, connection = large_answer
    read = len(connection.recv(1024))
    agent.stop(0.2)
    connection.settimeout(20)
    with suppress(ConnectionResetError):
        while chunk := connection.recv(1 << 20):
            read += len(chunk)
    assert read < LARGE.nbytes
