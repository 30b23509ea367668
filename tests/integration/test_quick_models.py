"""A quick model of an agent, which is predicted on the thread of its calls, over both doors."""

import threading
import time
from typing import ClassVar

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http
from fake_framework import SIDE, FakePredictor, mean_scores
from open_inference import images, tensor_of

from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions

ENOUGH = 400
LOOP = "grpc-loop"
SLOW = 7.0


class QuickPredictor(FakePredictor):
    """Notes its threads; an input of ``SLOW`` takes long."""

    any_thread = True
    threads_used: ClassVar[list[str]] = []

    def predict(self, inputs):
        self.threads_used.append(threading.current_thread().name)
        if (inputs["data"] == SLOW).any():
            end_s = time.thread_time() + 0.05
            while time.thread_time() < end_s:
                pass
        return {"scores": mean_scores(inputs["data"])}


@pytest.fixture
def client(start_agent):
    """A client of an agent whose model has proved that it is quick."""
    QuickPredictor.threads_used.clear()
    registry = Registry((FrameworkEntry("Fake", "test_quick_models:QuickPredictor", ("numpy",), ""),))
    batching = BatchingOptions(max_batch_size=8, inline_predict_us=1_000)
    agent = start_agent(registry=registry, serving=ServingOptions(batching), http_port=0)
    with triton.InferenceServerClient(agent.address) as client:
        client.http_address = agent.http_url.removeprefix("http://")
        for _ in range(ENOUGH):
            client.infer("Mean", [tensor_of(images(1))])
        assert QuickPredictor.threads_used[-1] == LOOP
        yield client


def test_both_doors_answer_as_before(client):
    image = images(1, seed=3)
    statistics = client.get_inference_statistics("Mean").model_stats[0]
    over_grpc = client.infer("Mean", [tensor_of(image)])
    with tritonclient.http.InferenceServerClient(client.http_address) as http:
        item = tritonclient.http.InferInput("data", [1, 1, SIDE, SIDE], "FP32")
        item.set_data_from_numpy(image)
        over_http = http.infer("Mean", [item])

    assert QuickPredictor.threads_used[-2:] == [LOOP, LOOP]
    np.testing.assert_array_equal(over_grpc.as_numpy("scores"), mean_scores(image))
    np.testing.assert_array_equal(over_http.as_numpy("scores"), mean_scores(image))
    now = client.get_inference_statistics("Mean").model_stats[0]
    assert now.inference_count == statistics.inference_count + 2 == ENOUGH + 2
    assert now.inference_stats.success.count == now.inference_stats.queue.count == ENOUGH + 2
    assert {item.batch_size: item.compute_infer.count for item in now.batch_stats} == {1: ENOUGH + 2}


def test_a_slow_prediction_sends_the_model_back_to_its_thread(client):
    slow = tensor_of(np.full((1, 1, SIDE, SIDE), SLOW, np.float32))
    for _ in range(20):
        client.infer("Mean", [slow])
    assert QuickPredictor.threads_used[-1] != LOOP
