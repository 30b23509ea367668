"""Several instances of a model, in a served agent and under load in this process."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fake_framework import SCRIPT, SIDE, fake_registry, mean_scores, wait_for

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
            make_load_target(session, inputs, 1, 0.0, instances) as target,
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


def test_an_agent_that_stops_closes_every_instance(serving):
    agent = serving(3)
    with open_remote_agent(agent.address, "Echo") as remote:
        remote.predict_tensor(images(1))
        assert {f"model Echo{each}" for each in ("", " #1", " #2")} <= names_of_threads()
        assert agent.stop(5)
    assert not any(name.startswith("model Echo") for name in names_of_threads())


def names_of_threads():
    return {thread.name for thread in threading.enumerate()}
