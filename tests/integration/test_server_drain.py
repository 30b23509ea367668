"""Stopping an agent under load: each call is answered, or refused so that clients may retry."""

import signal
import threading
import time

import grpc
import pytest
from agent_client import Client, outcome
from grpc_health.v1 import health_pb2

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
