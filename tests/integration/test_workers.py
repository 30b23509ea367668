"""``agent serve --workers``: several processes behind one port, over real sockets."""

import asyncio
import json
import os
import re
import secrets
import signal
import threading
import time
import urllib.request
from collections import Counter
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass

import grpc
import numpy as np
import psutil
import pytest
import tritonclient.utils.shared_memory as shm
from agent_client import BATCH, TIMEOUT_S, Client, outcome, v1_request
from closed_loops import ClosedLoops
from fake_framework import wait_for, write_manifests
from open_inference import images
from prometheus_client.parser import text_string_to_metric_families
from rest_client import Rest

from inferometer.agent.child_process import start_child
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.server.workers import run_worker
from inferometer.client.cli.main import run
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.protos.inference.v2 import grpc_service_pb2 as v2
from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2
from tests.cli.conftest import served
from tests.integration.conftest import plugin_environment

WORKERS, CLIENTS = 3, 24
OWN = [("grpc.use_local_subchannel_pool", 1)]
TENSOR = v2.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=BATCH.shape)
REQUEST = v2.ModelInferRequest(model_name="Mean", inputs=[TENSOR], raw_input_contents=[BATCH.tobytes()])
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE


@dataclass
class Served:
    process: object
    address: str
    http_url: str
    metrics_url: str

    def client(self, stack):
        """A client with a connection of its own."""
        return Client(stack.enter_context(grpc.insecure_channel(self.address, options=OWN)))

    def post(self, path, body):
        """The answer to a request over HTTP with a connection of its own."""
        with closing(Rest(self.http_url)) as ask:
            return ask("POST", path, body)

    @property
    def pids(self):
        """The workers; the parent also has multiprocessing's tracker of resources."""
        found = set()
        for each in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):  # it has just ended
                if any("spawn_main" in part for part in each.cmdline()):
                    found.add(each.pid)
        return found

    def metric(self, name, **labels):
        """The sum of the samples with these labels."""
        with urllib.request.urlopen(self.metrics_url, timeout=TIMEOUT_S) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(each.value for each in samples if labels.items() <= each.labels.items())


@contextmanager
def serve(folder, *options):
    with pytest.MonkeyPatch.context() as patch:
        plugin_environment(folder, patch)
        (folder / "manifests").mkdir()
        where = f"--manifests={write_manifests(folder / 'manifests')}"
        ports = ("--http_port=0", "--metrics_port=0")
        with served(f"--workers={WORKERS}", where, *ports, *options) as (address, process):
            urls = [process.stdout.readline().split()[-1] for _ in ports]
            yield Served(process, address, *urls)


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    """An agent that tests share."""
    options = ("--shared_memory", "--max_batch_size=8", "--grace_s=20", "--drain_s=0.2")
    with serve(tmp_path_factory.mktemp("workers"), *options) as found:
        yield found


def pid_of(client):
    """The worker that a client's connection leads to."""
    session = client.open("Mean")
    request = predict_pb2.ConditionsRequest(session_id=session)
    found = client.v1.Conditions(request, timeout=TIMEOUT_S).process
    client.v1.Close(predict_pb2.CloseRequest(session_id=session), timeout=TIMEOUT_S)
    return found


def statistics(agent, model):
    with urllib.request.urlopen(f"{agent.http_url}/v2/models/{model}/stats", timeout=TIMEOUT_S) as answer:
        [found] = json.loads(answer.read())["model_stats"]
    return found


def test_each_connection_has_its_worker_and_sums_are_of_all_calls(agent):
    before = agent.metric("inferometer_requests_total", method="inference.GRPCInferenceService/ModelInfer")
    with ExitStack() as stack:
        clients = [agent.client(stack) for _ in range(CLIENTS)]
        pids = Counter(map(pid_of, clients))
        assert [outcome(client, "Echo") for client in clients] == [OK] * CLIENTS
        for client in clients:
            client.open("Mean")
        assert clients[0].status().open_sessions == agent.metric("inferometer_sessions_open") == CLIENTS
        assert clients[0].registry.Describe(registry_pb2.DescribeRequest()).open_sessions == CLIENTS
        assert clients[0].v1.Reset(predict_pb2.ResetRequest()).closed_sessions == CLIENTS
    assert len(pids) > 1
    assert pids.keys() <= agent.pids
    assert len(agent.pids) == WORKERS
    echo = {"model": "Echo", "method": "inference.GRPCInferenceService/ModelInfer"}
    assert agent.metric("inferometer_requests_total", code="OK", **echo) == CLIENTS
    assert agent.metric("inferometer_request_duration_seconds_count", **echo) == CLIENTS
    assert agent.metric("inferometer_batch_inputs_sum", model="Echo") == CLIENTS
    assert before == 0
    found = statistics(agent, "Echo")
    assert (found["inference_count"], found["execution_count"]) == (CLIENTS, CLIENTS)
    assert found["inference_stats"]["success"]["count"] == CLIENTS
    assert [(each["batch_size"], each["compute_infer"]["count"]) for each in found["batch_stats"]] == [
        (1, CLIENTS)
    ]
    assert found["inference_stats"]["compute_infer"]["ns"] == sum(
        each["compute_infer"]["ns"] for each in found["batch_stats"]
    )
    assert agent.metric("inferometer_serving") == agent.metric("inferometer_info") == 1


def test_a_model_is_loaded_and_unloaded_in_every_worker(agent):
    with ExitStack() as stack:
        clients = [agent.client(stack) for _ in range(CLIENTS)]

        def ready():
            request = v2.ModelReadyRequest(name="Large")
            return {client.v2.ModelReady(request, timeout=TIMEOUT_S).ready for client in clients}

        assert ready() == {False}
        clients[0].v2.RepositoryModelLoad(v2.RepositoryModelLoadRequest(model_name="Large"))
        assert ready() == {True}
        assert agent.metric("inferometer_models_loaded", model="Large") == WORKERS
        clients[1].v2.RepositoryModelUnload(v2.RepositoryModelUnloadRequest(model_name="Large"))
        assert ready() == {False}
        with pytest.raises(grpc.RpcError) as error:
            clients[2].v2.RepositoryModelLoad(v2.RepositoryModelLoadRequest(model_name="NoSuchModel"))
        assert error.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_load_with_a_configuration_reaches_every_worker(agent):
    def limits():
        """The largest batch and the instances that each connection is told."""
        with ExitStack() as stack:
            found = set()
            for client in [agent.client(stack) for _ in range(CLIENTS)]:
                config = client.v2.ModelConfig(v2.ModelConfigRequest(name="Large")).config
                found.add((config.max_batch_size, config.instance_group[0].count))
            return found

    assert limits() == {(8, 1)}
    config = {"max_batch_size": 4, "dynamic_batching": {}, "instance_group": [{"count": 2}]}
    loaded = agent.post("/v2/repository/models/Large/load", {"parameters": {"config": json.dumps(config)}})
    assert loaded.status == 200
    assert limits() == {(4, 2)}
    assert agent.post("/v2/repository/models/Large/unload", {}).status == 200
    assert limits() == {(8, 1)}
    assert agent.post("/v2/repository/models/Large/unload", {}).status == 200


def test_a_region_of_shared_memory_is_known_whatever_connection_names_it(agent):
    batch = images(1)
    segment = shm.create_shared_memory_region("region", f"/test-{secrets.token_hex(8)}", batch.nbytes)
    shm.set_shared_memory_region(segment, [batch])
    tensor = {"name": "data", "datatype": "FP32", "shape": list(batch.shape)}
    tensor["parameters"] = {"shared_memory_region": "region", "shared_memory_byte_size": batch.nbytes}
    try:
        key = {"key": segment._shm_key, "offset": 0, "byte_size": batch.nbytes}
        assert agent.post("/v2/systemsharedmemory/region/region/register", key).status == 200
        for _ in range(CLIENTS):
            found = agent.post("/v2/models/Echo/infer", {"inputs": [tensor]})
            assert np.allclose(found.json["outputs"][0]["data"], batch.ravel())
        assert agent.post("/v2/systemsharedmemory/unregister", {}).status == 200
        refused = {agent.post("/v2/models/Echo/infer", {"inputs": [tensor]}).status for _ in range(CLIENTS)}
        assert refused == {404}
    finally:
        shm.destroy_shared_memory_region(segment)


def test_a_session_is_predicted_over_further_connections_of_its_client(agent):
    for _ in range(4):
        with open_remote_agent(agent.address, "Mean") as session:
            connection, request = session.connection, v1_request(session.session_id)
            release = connection.hold()
            call = connection.begin_predict(request.SerializeToString())
            assert connection.read(connection.end_predict(call)).failures == ()
            release()


def test_the_ports_are_of_the_workers_alone(agent, capsys):
    urls = {"port": agent.address, "http_port": agent.http_url, "metrics_port": agent.metrics_url[:-8]}
    for option, url in urls.items():
        place = url.rpartition("/")[2]
        for beside in ((), ("--workers=2",)):
            given = ("--port=0", f"--{option}={place.rpartition(':')[2]}", *beside)
            assert run(["serve", *given]) == 2
            [error] = capsys.readouterr().err.splitlines()
            assert f"cannot listen on {place}" in error
            assert f"choose another --{option}" in error


def test_a_killed_worker_is_replaced_and_loses_its_own_calls_alone(agent):
    with ExitStack() as stack:
        clients = [agent.client(stack) for _ in range(CLIENTS)]
        pids = [pid_of(client) for client in clients]
        clients[0].v2.RepositoryModelLoad(v2.RepositoryModelLoadRequest(model_name="Picky"))
        others, victim = dict(zip(clients, pids, strict=True)), pids[-1]
        assert [outcome(client, "Echo") for client in clients] == [OK] * CLIENTS
        answered = agent.metric("inferometer_requests_total", model="Echo")
        ended, failed = threading.Event(), Counter()

        def loop(client):
            while not ended.is_set():
                try:
                    client.v2.ModelInfer(REQUEST, timeout=TIMEOUT_S, wait_for_ready=True)
                except grpc.RpcError as error:
                    failed[others[client], error.code()] += 1

        readings = []

        def read():
            while not ended.is_set():
                with suppress(OSError, grpc.RpcError):  # of the worker that is killed
                    found, cpu_ns = statistics(agent, "Mean"), clients[0].status().cpu_ns
                    success = found["inference_stats"]["success"]
                    readings.append((found["inference_count"], success["count"], success["ns"], cpu_ns))

        threads = [threading.Thread(target=loop, args=(client,)) for client in clients]
        threads.append(threading.Thread(target=read))
        for thread in threads:
            thread.start()
        wait_for(lambda: agent.metric("inferometer_requests_total", model="Mean", code="OK") > 10 * CLIENTS)
        counted = statistics(agent, "Echo")["inference_count"]
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: len(agent.pids - {victim}) == WORKERS)

        def has_all_workers():
            client = agent.client(stack)
            return pid_of(client) not in pids and outcome(client, "Mean") is OK

        wait_for(has_all_workers)
        ended.set()
        for thread in threads:
            thread.join(TIMEOUT_S)
        assert len(readings) > 2
        for each in zip(*readings, strict=True):
            assert list(each) == sorted(each)
        assert statistics(agent, "Echo")["inference_count"] == counted >= CLIENTS
        assert failed.keys() == {(victim, UNAVAILABLE)}
        # one of each client; a second one if it reconnects while the kernel still closes the worker's sockets
        assert failed.total() <= 2 * pids.count(victim)
        assert agent.metric("inferometer_models_loaded", model="Picky") == WORKERS
        assert agent.metric("inferometer_requests_total", model="Echo") == answered >= CLIENTS


def test_a_stopped_worker_does_not_delay_every_call(agent):
    with ExitStack() as stack:
        clients = [agent.client(stack) for _ in range(CLIENTS)]
        pids = [pid_of(client) for client in clients]
        stopped = psutil.Process(pids[0])
        client = next(client for client, pid in zip(clients, pids, strict=True) if pid != stopped.pid)
        stopped.suspend()
        try:
            errors, began_s = [], time.monotonic()
            for _ in range(50):
                with pytest.raises(grpc.RpcError) as error:
                    client.status()
                errors.append((error.value.code(), error.value.details()))
            took_s = time.monotonic() - began_s
        finally:
            stopped.resume()
        assert {code for code, _ in errors} == {UNAVAILABLE}
        assert re.fullmatch("worker . has not answered within 2 s", errors[0][1])
        assert all(re.fullmatch("worker . does not answer", details) for _, details in errors[1:])
        assert took_s < 30  # rather than 2 s each

        def answers():
            with suppress(grpc.RpcError):
                return client.status().health == "SERVING"

        wait_for(answers)


def test_drain_loses_no_call(agent):
    """The last test of the agent, which it ends."""

    async def stop():
        agent.process.send_signal(signal.SIGTERM)
        _, log = await asyncio.to_thread(agent.process.communicate, timeout=60)
        lines = [line for line in log.splitlines() if not re.search("worker . was ended by SIGKILL", line)]
        assert agent.process.returncode == 0
        assert all(" UNAVAILABLE in " in line for line in lines), log

    outcomes = asyncio.run(ClosedLoops(agent.address, agent.http_url, CLIENTS).run(stop))
    assert {outcome for _, outcome in outcomes} == {200, 503, OK, UNAVAILABLE}, outcomes
    assert not psutil.pid_exists(agent.process.pid)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--workers=0"], "0 is not in the range"),
        (["--workers=129"], "129 is not in the range"),
        (["--workers=2", "--host=0.0.0.0"], "--insecure"),
    ],
)
def test_wrong_options_are_one_line(environment, capsys, options, line):
    assert run(["serve", "--port=0", *options]) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert line in error


def test_a_worker_ends_with_its_parent(environment):
    child = start_child("worker", run_worker, AgentServer, ServerOptions())
    child.connection.close()
    child.process.join(TIMEOUT_S)
    assert child.process.exitcode == 1
