"""The conditions on an agent's host, as a client reads them over gRPC."""

from __future__ import annotations

import os
from contextlib import closing

import grpc
import pytest

from inferometer.agent.hardware.conditions import read_counters
from inferometer.agent.server.native.predict_service import PredictService
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.client.remote.pool import open_agent_pool
from inferometer.evaluators.conditions.conditions import WatchedSystem
from inferometer.protos.inferometer.v1 import predict_pb2
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub


def test_an_agent_tells_the_counters_of_its_host_and_process(spawn_agent):
    agent = spawn_agent()
    with open_remote_agent(agent.address, "Mean") as remote:
        assert isinstance(remote, WatchedSystem)
        [begin] = remote.condition_counters()
        [end] = remote.condition_counters()
    here = read_counters()

    assert (begin.machine, begin.hostname) == (here.machine, here.hostname)
    assert begin.process == agent.process.pid != os.getpid()
    assert begin.taken_ns < end.taken_ns < here.taken_ns
    assert 0 < begin.own_cpu_s <= end.own_cpu_s
    assert begin.processors is not None
    assert begin.processors.count == here.processors.count
    assert begin.gpu is None


def test_the_session_has_to_be_open(start_agent, channel_to):
    stub = PredictServiceStub(channel_to(start_agent().address))

    with pytest.raises(grpc.RpcError) as error:
        stub.Conditions(predict_pb2.ConditionsRequest(session_id="gone"), timeout=20)

    assert error.value.code() is grpc.StatusCode.NOT_FOUND


def test_an_agent_of_an_earlier_version_tells_nothing(start_agent, monkeypatch):
    all_methods = PredictService.methods
    monkeypatch.setattr(
        PredictService, "methods", lambda self: [m for m in all_methods(self) if "Conditions" not in m.path]
    )
    with open_remote_agent(start_agent().address, "Mean") as remote:
        assert remote.condition_counters() == ()


def test_a_closed_or_lost_agent_tells_nothing(start_agent):
    agent = start_agent()
    with open_remote_agent(agent.address, "Mean") as remote:
        agent.stop(0)
        assert remote.condition_counters() == ()
    assert remote.condition_counters() == ()


def test_a_pool_tells_those_of_every_agent(start_agent, spawn_agent):
    addresses = [start_agent().address, spawn_agent().address]
    with closing(open_agent_pool(addresses, lambda address: open_remote_agent(address, "Mean"))) as pool:
        found = pool.condition_counters()

    assert [each.process == os.getpid() for each in found] == [True, False]


def test_a_pool_in_which_one_tells_nothing_tells_nothing(start_agent, spawn_agent):
    agent = start_agent()
    addresses = [agent.address, spawn_agent().address]
    with closing(open_agent_pool(addresses, lambda address: open_remote_agent(address, "Mean"))) as pool:
        agent.stop(0)
        assert pool.condition_counters() == ()
