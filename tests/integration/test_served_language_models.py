"""Language models count, are listed, loaded and unloaded like the other models of an agent."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import pytest

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.serving import served_models
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServedModels, ServingOptions, VersionPolicies
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, MemoryLimitError
from inferometer.protos.inferometer.v1 import registry_pb2
from tests.integration.test_rest_openai import COMPLETION, ask, connected, until

NAME = "ToyLlama"


@contextmanager
def started(*, idle_s: float = 600.0, **serving: Any) -> Iterator[AgentServer]:
    options = ServerOptions(port=0, http_port=0, session_idle_s=idle_s, serving=ServingOptions(**serving))
    with AgentServer(Catalog(), Registry(), options) as server:
        yield server


def posted(agent: AgentServer, path: str, body: object) -> tuple[int, Any]:
    with closing(connected(agent)) as connection:
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")


def is_ready(agent: AgentServer) -> bool:
    with closing(connected(agent)) as connection:
        connection.request("GET", f"/v2/models/{NAME}/ready")
        return connection.getresponse().status == 200


def listed(agent: AgentServer) -> Mapping[str, Any]:
    _, index = posted(agent, "/v2/repository/index", {})
    [found] = (each for each in index if each["name"] == NAME)
    return dict(found)


def counted(agent: AgentServer) -> tuple[int, int, int]:
    """The answers and failures of the only loaded model, and the nanoseconds of its predictions."""
    _, found = ask(agent, f"/v2/models/{NAME}/stats")
    [stats] = found["model_stats"]
    success, fail = stats["inference_stats"]["success"], stats["inference_stats"].get("fail", {})
    compute = stats["inference_stats"]["compute_infer"]
    return int(success["count"]), int(fail.get("count", 0)), int(compute["ns"])


def test_a_language_model_is_listed_loaded_told_and_unloaded_like_any_other() -> None:
    with started(batching=BatchingOptions(max_batch_size=4)) as agent:
        assert not is_ready(agent)
        assert listed(agent) == {"name": NAME, "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
        status, found = ask(agent, "/v1/completions", COMPLETION)
        assert (status, is_ready(agent), listed(agent)["state"]) == (200, True, "READY")

        [told] = agent.registry_service.status(registry_pb2.StatusRequest(), None).models  # type: ignore[arg-type]
        assert (told.name, told.framework_name, told.device) == (NAME, "PyTorch", "cpu")
        assert (told.predicted_inputs, told.waiting_requests, told.busy_ns) == (1, 0, 0)
        assert (told.instances, told.instances_alive) == (1, 1)
        answers, failures, compute_ns = counted(agent)
        assert (answers, failures) == (1, 0)
        spent_ms = found["timings"]["prefill_ms"] + found["timings"]["steps_ms"]
        assert compute_ns == pytest.approx(spent_ms * 1e6, abs=1)

        tensor = {"name": "input_ids", "shape": [1, 2], "datatype": "INT64", "data": [5, 6]}
        for _ in range(2):  # whether it is loaded or not
            status, found = posted(agent, f"/v2/models/{NAME}/infer", {"inputs": [tensor]})
            assert status == 400
            assert "generates text; ask for it with generate" in found["error"]
            assert posted(agent, f"/v2/repository/models/{NAME}/unload", {})[0] == 200
            until(lambda: not len(agent.models))
            assert not is_ready(agent)
        assert posted(agent, f"/v2/repository/models/{NAME}/load", {})[0] == 200
        assert is_ready(agent)


def test_a_session_of_a_language_model_is_refused() -> None:
    with (
        started() as agent,
        pytest.raises(ConfigurationError, match="generates text and makes no predictions"),
    ):
        open_remote_agent(agent.address, NAME, None, None, SessionOptions(), RemoteOptions())


def test_an_idle_language_model_is_unloaded_but_not_one_that_generates() -> None:
    with started(idle_s=0.1) as agent:
        body = json.dumps({**COMPLETION, "max_tokens": 2000, "ignore_eos": True, "stream": True})
        assert agent.http_url is not None
        host, _, port = agent.http_url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port)), 20.0) as client:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            until(lambda: any(each.busy_ns for each in agent.models.loaded))
            [served] = agent.models.loaded
            assert agent.models.close_idle() == 0
        until(lambda: served.statistics.totals.failures == 1)  # it has left before its answer
        until(lambda: not len(agent.models))
        assert served.alive == 0
        for prompt, expected in (("You may", 200), ("", 400)):
            assert ask(agent, "/v1/completions", {**COMPLETION, "prompt": prompt})[0] == expected
            until(lambda: not len(agent.models))


def test_a_model_that_the_version_policy_does_not_serve_is_not_there() -> None:
    with started(versions=VersionPolicies.parse([f"{NAME}=specific:2"])) as agent:
        assert ask(agent, "/v1/models")[1]["data"] == []
        status, found = ask(agent, "/v1/completions", COMPLETION)
        assert (status, found["error"]["code"]) == (404, "model_not_found")
        assert "has no version at all under version policy specific:2" in found["error"]["message"]


def test_language_models_count_in_the_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their files have 0.54 MB each, so one of them fits."""
    monkeypatch.setattr(served_models, "used_bytes", lambda _: 10**9)
    manifest = Catalog().find_model(NAME, None, Registry().versions)
    models = ServedModels(Registry(), lambda *_: None, ServingOptions(memory_limit_bytes=10**6))  # type: ignore[arg-type]
    one, other = BatchingOptions(max_batch_size=1), BatchingOptions(max_batch_size=2)
    with models.lease_model(manifest, SessionOptions(), batching=one) as served:
        with pytest.raises(MemoryLimitError, match=r"ToyLlama 1\.0 takes 1 MiB on cpu, where models in use"):
            models.lease_model(manifest, SessionOptions(), batching=other)
        assert [each.options for each in models.loaded] == [one]
    with models.lease_model(manifest, SessionOptions(), batching=other):
        assert [each.options for each in models.loaded] == [other]
        assert served.alive == 0
    models.close()
    assert models.wait_for_none(20.0)


def test_an_agent_without_room_says_so_in_openais_form() -> None:
    with started(memory_limit_bytes=1000) as agent:
        status, found = ask(agent, "/v1/completions", COMPLETION)
        assert (status, found["error"]["type"]) == (503, "server_error")
        assert "--memory_limit is 1 MiB" in found["error"]["message"]
        assert not len(agent.models)
