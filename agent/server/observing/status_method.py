"""The ``Status`` method of the ``Registry`` service: how the agent is at this moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc
import psutil

from agent.facts import AgentFacts
from agent.server.observing.agent_load import AgentLoad
from agent.server.observing.prediction_watch import Trouble
from agent.server.rpc import Methods
from protos.inferscope.v1 import registry_pb2

_SERVICE = registry_pb2.DESCRIPTOR.services_by_name["Registry"].full_name


class StatusMethod:
    """Answers ``Status``.

    Args:
        facts: What does not change while the agent runs.
        load: What it holds now.
    """

    def __init__(self, facts: Callable[[], AgentFacts], load: Callable[[], AgentLoad]) -> None:
        self._facts = facts
        self._load = load
        self._started_ns = time.perf_counter_ns()
        self._process = psutil.Process()

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The method by its name."""
        pb = registry_pb2
        return {
            "Status": Methods(_SERVICE).unary(
                "Status", self.status, pb.StatusRequest.FromString, pb.StatusResponse.SerializeToString
            )
        }

    def status(self, _: registry_pb2.StatusRequest, __: grpc.ServicerContext) -> registry_pb2.StatusResponse:
        """Tells how the agent is."""
        facts, load = self._facts(), self._load()
        return registry_pb2.StatusResponse(
            health="SERVING" if load.serving else "NOT_SERVING",
            inferscope_version=facts.inferscope_version,
            started_unix_ms=int(facts.started_at.timestamp() * 1000) if facts.started_at else 0,
            uptime_ns=time.perf_counter_ns() - self._started_ns,
            open_sessions=load.sessions,
            models=[
                registry_pb2.LoadedModel(
                    name=model.name,
                    version=model.version,
                    framework_name=model.framework,
                    device=model.device,
                    waiting_requests=model.waiting,
                    busy_ns=model.busy_ns,
                    predicted_inputs=model.predicted_inputs,
                )
                for model in load.models
            ],
            troubles=troubles(load.trouble),
            gpus=facts.gpus,
            resident_memory_bytes=self._process.memory_info().rss,
        )


def troubles(trouble: Trouble) -> list[str]:
    """Returns why an agent does not serve, a line each."""
    lost = [f"{device} is lost: {message}" for device, message in trouble.lost_devices]
    hanging = [f"model {model}: a prediction has run for {ns / 1e9:.1f} s" for model, ns in trouble.hanging]
    return lost + hanging
