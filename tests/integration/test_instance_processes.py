"""Instances of a served model in processes of their own, some of which are killed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from urllib.request import urlopen

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from agent_client import Client
from fake_framework import SCRIPT, SIDE, apart_registry, wait_for
from tritonclient.utils import InferenceServerException

from inferometer.agent.hardware.conditions import own_cpu_s
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.server import server
from inferometer.agent.server.server import AgentServer
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions

CALLERS = 6


OTHERS: set[int] = set()
"""The processes that earlier tests have started."""


@pytest.fixture
def start(start_agent) -> Callable[..., AgentServer]:
    OTHERS.clear()
    OTHERS.update(child.pid for child in psutil.Process().children())

    def agent(instances: int, **options) -> AgentServer:
        serving = ServingOptions(BatchingOptions(instances=instances, **options), SessionOptions(threads=1))
        return start_agent(registry=apart_registry(), serving=serving, metrics_port=0)

    return agent


def processes() -> list[psutil.Process]:
    """The processes of instances."""
    found = []
    for child in psutil.Process().children():
        try:
            if child.pid in OTHERS:
                continue
            if child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def metric(agent: AgentServer, name: str) -> dict[str, float]:
    """The values of a metric that are not 0, by their labels."""
    assert agent.metrics_url is not None
    with urlopen(agent.metrics_url) as page:
        found = re.findall(rf"^inferometer_{name}{{(.*)}} (.*)$", page.read().decode(), re.M)
    return {labels: float(value) for labels, value in found if float(value)}


def infer(client: triton.InferenceServerClient, model: str, *values: float) -> list[float]:
    """The answer's first column."""
    batch = np.stack([np.full((1, SIDE, SIDE), value, np.float32) for value in values])
    tensor = triton.InferInput("data", batch.shape, "FP32")
    tensor.set_data_from_numpy(batch)
    return client.infer(model, [tensor]).as_numpy("data")[:, 0, 0, 0].tolist()


def test_a_killed_process_loses_only_its_own_request(start, manifest_folder) -> None:
    agent = start(3)
    with triton.InferenceServerClient(agent.address) as client, ThreadPoolExecutor(4) as pool:
        calls: list[Future[list[float]]] = [pool.submit(infer, client, "Waiting", n) for n in range(4)]
        wait_for(lambda: any(model.waiting == 1 for model in agent.models.loaded))
        wait_for(lambda: len([*manifest_folder.glob("begun.*")]) == 3)  # the others have begun
        before = processes()
        os.kill(before[1].pid, signal.SIGKILL)
        wait_for(lambda: any(call.done() for call in calls))
        (manifest_folder / "go").touch()
        errors = [error for call in calls if (error := call.exception()) is not None]
        answers = [call.result() for call in calls if call.exception() is None]

        [error] = errors
        assert isinstance(error, InferenceServerException)
        assert error.status() == "StatusCode.UNAVAILABLE"
        assert "an instance of model Waiting 1.0 was ended by SIGKILL" in str(error)
        assert sorted(value for [value] in answers) == [n for n in range(4) if calls[n].exception() is None]
        wait_for(lambda: len(processes()) == 2)
        assert before[0] in processes()
        assert [infer(client, "Waiting", value) for value in range(9)] == [[value] for value in range(9)]
    assert metric(agent, "prediction_failures_total") == {'kind="instance_lost",model="Waiting"': 1}
    assert list(metric(agent, "models_loaded").values()) == [3]
    [model] = agent.models.loaded
    assert model.statistics.totals.failures == 1


def test_kills_under_load_lose_no_more_than_what_was_under_way(start, manifest_folder) -> None:
    (manifest_folder / SCRIPT).write_text(json.dumps({"service_s": 0.01}))
    agent = start(3, max_batch_size=2)
    stop, outcomes = threading.Event(), []

    def call(client: triton.InferenceServerClient, number: int) -> None:
        value = number * 1000
        while not stop.is_set():
            value += 1
            try:
                outcomes.append(infer(client, "Scripted", value, -value) == [value, -value])
            except InferenceServerException as error:
                outcomes.append(error)

    with triton.InferenceServerClient(agent.address) as client, ThreadPoolExecutor(CALLERS) as pool:
        infer(client, "Scripted", 0, 0)
        callers = [pool.submit(call, client, number) for number in range(CALLERS)]
        for _ in range(3):
            answered = len(outcomes)
            wait_for(lambda answered=answered: len(outcomes) > answered + 2 * CALLERS)
            victim = random.choice(processes())
            os.kill(victim.pid, signal.SIGKILL)
            wait_for(lambda victim=victim: victim not in processes() and len(processes()) == 2)
        stop.set()
        for caller in callers:
            caller.result()

    failed = [each for each in outcomes if isinstance(each, InferenceServerException)]
    assert len(failed) <= 3  # a batch is one request of two inputs
    assert {error.status() for error in failed} <= {"StatusCode.UNAVAILABLE"}
    assert all(each for each in outcomes if each not in failed)
    assert agent.stop(5)
    wait_for(lambda: not processes())


def test_a_process_that_dies_while_it_is_idle_fails_no_request(start) -> None:
    agent = start(2)
    with triton.InferenceServerClient(agent.address) as client:
        infer(client, "Echo", 1)
        [process] = processes()
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: process not in processes() and len(processes()) == 1)  # without a batch
        wait_for(lambda: list(metric(agent, "instances_alive").values()) == [2])
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda value: infer(client, "Echo", value), range(16)))
        assert answers == [[value] for value in range(16)]


def test_the_status_counts_the_processes(start, channel_to) -> None:
    agent = start(3)
    with triton.InferenceServerClient(agent.address) as client:
        infer(client, "Echo", 1)
    children = [child.pid for child in processes()]
    cpu_s, memory = own_cpu_s(children), [psutil.Process(pid).memory_info().rss for pid in children]
    status = Client(channel_to(agent.address)).status()

    assert cpu_s <= status.cpu_ns / 1e9 <= cpu_s + 1
    assert status.resident_memory_bytes > psutil.Process().memory_info().rss + 0.9 * sum(memory)


def test_unloading_ends_the_processes(start) -> None:
    agent = start(3)
    with triton.InferenceServerClient(agent.address) as client:
        infer(client, "Echo", 1)
        assert len(processes()) == 2
        client.unload_model("Echo")
        wait_for(lambda: not processes())


def test_a_stop_waits_within_its_grace_period_for_an_instance_that_starts_again(
    start, manifest_folder, monkeypatch
) -> None:
    monkeypatch.setattr(server, "_LEAVING_S", 0.0)
    agent = start(2)
    with triton.InferenceServerClient(agent.address) as client, ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(infer, client, "Waiting", n) for n in range(3)]
        wait_for(lambda: any(model.waiting == 1 for model in agent.models.loaded))
        wait_for(lambda: len([*manifest_folder.glob("begun.*")]) == 2)  # the others have begun
        os.kill(processes()[0].pid, signal.SIGKILL)
        wait_for(lambda: any(call.done() for call in calls))
        (manifest_folder / "go").touch()
        wait([*calls])
    assert agent.stop(20)
    wait_for(lambda: not processes())
