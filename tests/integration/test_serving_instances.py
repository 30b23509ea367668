"""Several instances of a model, in a served agent and under load in this process."""

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import grpc
import numpy as np
import pytest
from agent_client import TIMEOUT_S, Client
from fake_framework import MANIFEST, SCRIPT, SIDE, fake_registry, mean_scores, wait_for
from grpc_health.v1 import health_pb2

from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.local_target import LocalTarget, make_load_target
from inferometer.evaluators.load.queries import QueryLog
from inferometer.evaluators.load.target import PreparedInputs
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError
from inferometer.protos.inference.v2 import grpc_service_pb2 as v2

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_S = 0.05
REQUESTS = 24
DEADLINE_S = 30
FOUR_TIMES = (3.4, 4.2)  # less than 4 by what is not the model's time


def images(*values):
    return np.stack([np.full((1, SIDE, SIDE), value, np.float32) for value in values])


@pytest.fixture
def serving(start_agent, manifest_folder):
    """Starts an agent whose Scripted model takes a known time."""
    (manifest_folder / SCRIPT).write_text(json.dumps({"service_s": SERVICE_S}))

    def start(instances, **options):
        batching = BatchingOptions(instances=instances, **options)
        return start_agent(serving=ServingOptions(batching, SessionOptions(threads=1)))

    return start


@pytest.mark.real_time
def test_four_instances_of_a_served_model_have_four_times_the_throughput(serving):
    seconds = {}
    for instances in (1, 4):
        with (
            open_remote_agent(serving(instances).address, "Scripted") as remote,
            ThreadPoolExecutor(REQUESTS) as pool,
        ):
            remote.predict_tensor(images(0))
            began_s = time.perf_counter()
            list(pool.map(lambda _, remote=remote: remote.predict_tensor(images(0)), range(REQUESTS)))
            seconds[instances] = time.perf_counter() - began_s

    assert seconds[1] >= REQUESTS * SERVICE_S
    assert FOUR_TIMES[0] < seconds[1] / seconds[4] < FOUR_TIMES[1]


@pytest.mark.real_time
def test_four_instances_under_load_have_four_times_the_throughput(serving, manifest_folder):
    inputs = PreparedInputs.of_batch({"data": images(1, 2, 3)}, "three levels of grey")
    seconds = {}
    for instances in (1, 4):
        with (
            opened("Scripted", manifest_folder) as session,
            make_load_target(session, inputs, instances=instances) as target,
        ):
            began_ns = time.perf_counter_ns()
            log = QueryLog(Schedule(np.zeros(REQUESTS, np.int64), "all at once", 1.0), began_ns)
            target.begin(log)
            for query in range(REQUESTS):
                log.sent(query, time.perf_counter_ns())
                target.submit(query)
            target.end(DEADLINE_S)
        assert log.reasons == {}
        seconds[instances] = log.queries().done_ns.max() / 1e9

    assert FOUR_TIMES[0] < seconds[1] / seconds[4] < FOUR_TIMES[1]


def opened(name, manifest_folder):
    registry = fake_registry()
    manifest = Catalog([manifest_folder]).find_model(name, None, registry.versions)
    return open_session(manifest, SessionOptions(threads=1), registry)


def test_a_target_closes_the_instances_that_it_opened_and_not_the_session(manifest_folder):
    inputs = PreparedInputs.of_batch({"data": images(1)}, "grey")
    with opened("Echo", manifest_folder) as session:
        LocalTarget(session, inputs, instances=3).close()
        wait_for((manifest_folder / "closed").exists)
        assert session.predict_tensor(images(1)).input_ids == ("0",)


def test_a_system_with_only_one_instance_is_refused(manifest_folder):
    class Single:
        """A system that opens no other."""

        def __init__(self, session):
            self.description = session.description
            self.predict_tensor = session.predict_tensor

    inputs = PreparedInputs.of_batch({"data": images(1)}, "grey")
    with (
        opened("Echo", manifest_folder) as session,
        pytest.raises(ConfigurationError, match="instances is 2, but this model can have only one"),
    ):
        LocalTarget(Single(session), inputs, instances=2)


@pytest.mark.parametrize("max_batch_size", [1, 8])
def test_mixed_calls_get_each_their_own_answer(serving, max_batch_size):
    agent = serving(4, max_batch_size=max_batch_size)
    batches = [images(*range(n, n + 1 + n % 3)) for n in range(120)]
    with open_remote_agent(agent.address, "Mean") as remote, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(remote.predict_tensor, batches))

    for batch, answer in zip(batches, answers, strict=True):
        scores = np.sort(mean_scores(batch), axis=1)[:, ::-1]
        np.testing.assert_array_equal(answer.outputs.probabilities, scores)
    [model] = agent.models.loaded
    assert model.statistics.totals.requests == 120


def test_a_hanging_instance_leaves_the_model_to_the_others(start_agent, channel_to, manifest_folder):
    facts = {"name": "Sticking", "side": SIDE, "output": "raw", "architecture": "sticking"}
    (manifest_folder / "sticking.yml").write_text(MANIFEST.format(**facts))
    options = ServingOptions(BatchingOptions(instances=2), SessionOptions(threads=1), predict_timeout_s=0.3)
    agent = start_agent(serving=options, metrics_port=0)
    client = Client(channel_to(agent.address))

    def alive():
        [loaded] = client.status().models
        return loaded.instances_alive, loaded.instances

    def ready():
        return client.v2.ModelReady(v2.ModelReadyRequest(name="Sticking"), timeout=TIMEOUT_S).ready

    assert infer(client, 1) == images(1).tobytes()
    assert (alive(), ready()) == ((2, 2), True)
    with pytest.raises(grpc.RpcError) as error:
        infer(client, -1)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "the prediction under way has run for" in error.value.details()
    wait_for(lambda: alive() == (1, 2))
    [trouble] = client.status().troubles
    assert re.fullmatch(
        r"model Sticking: a prediction has run for .* s; instances that are alive: 1", trouble
    )
    assert [infer(client, value) for value in range(9)] == [images(value).tobytes() for value in range(9)]
    assert (ready(), client.checked(), client.status().health) == (True, SERVING, "SERVING")
    page = urlopen(agent.metrics_url).read().decode()
    labels = 'device="cpu",framework="Fake",model="Sticking",version="1.0"'
    assert f"inferometer_instances_alive{{{labels}}} 1.0" in page
    assert f"inferometer_models_loaded{{{labels}}} 2.0" in page
    assert "inferometer_predictions_hanging 1.0" in page
    assert "inferometer_serving 1.0" in page

    with pytest.raises(grpc.RpcError):
        infer(client, -1)
    wait_for(lambda: client.checked() == NOT_SERVING)
    assert (alive(), ready(), client.status().health) == ((0, 2), False, "NOT_SERVING")
    with pytest.raises(grpc.RpcError, match="the prediction under way has run for"):
        infer(client, 1)
    (manifest_folder / "go").touch()
    wait_for(lambda: client.checked() == SERVING)
    wait_for(lambda: (alive(), ready()) == ((2, 2), True))
    assert infer(client, -1) == images(-1).tobytes()


def infer(client, value):
    """The bytes of the answer to an image of a value."""
    tensor = v2.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=images(1).shape)
    request = v2.ModelInferRequest(
        model_name="Sticking", inputs=[tensor], raw_input_contents=[images(value).tobytes()]
    )
    [answer] = client.v2.ModelInfer(request, timeout=TIMEOUT_S).raw_output_contents
    return answer


def test_an_agent_that_stops_closes_every_instance(serving):
    agent = serving(3)
    with open_remote_agent(agent.address, "Echo") as remote:
        remote.predict_tensor(images(1))
        assert {f"model Echo{each}" for each in ("", " #1", " #2")} <= names_of_threads()
        assert agent.stop(5)
    assert not any(name.startswith("model Echo") for name in names_of_threads())


def names_of_threads():
    return {thread.name for thread in threading.enumerate()}
