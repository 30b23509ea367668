"""Clients that drop their calls, of every kind and in thousands, while all that looks at calls is on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from inferometer.protos.inference.v2 import grpc_service_pb2 as v2
from inferometer.protos.inferometer.v1 import predict_pb2, tensor_pb2
from tests.cli.conftest import COMMAND, Agent

CLIENTS = 8
CALLS = 125
"""The dropped calls of each client and kind."""
DIGIT = np.zeros((1, 1, 8, 8), np.float32)
INFER = "/inference.GRPCInferenceService/ModelInfer"
INFER_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
PREDICT_STREAM = "/inferometer.v1.PredictService/PredictStream"
OPEN = "/inferometer.v1.PredictService/Open"
TRACED = (("traceparent", "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"),)


@pytest.fixture
def looked_at(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str], Path]]:
    """An agent with every log, with metrics and with traces for a collector that is not there."""
    log = tmp_path / "log"
    options = ("-vv", "--log_format=json", "--metrics_port=0", "--tracer_address=127.0.0.1:9")
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*COMMAND, *options, "--max_batch_size=4", "--trace_level=FULL_TRACE"],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().removeprefix("serving on ").strip(), process, log
    finally:
        process.kill()
        process.communicate()


def inference() -> bytes:
    tensor = v2.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=DIGIT.shape)
    return v2.ModelInferRequest(
        model_name="DigitsCNN@ONNXRuntime", inputs=[tensor], raw_input_contents=[DIGIT.tobytes()]
    ).SerializeToString()


def batch(channel: grpc.Channel) -> bytes:
    request = predict_pb2.OpenRequest(model_name="DigitsCNN", framework_name="ONNXRuntime")
    opened = channel.unary_unary(OPEN, response_deserializer=predict_pb2.OpenResponse.FromString)
    session_id = opened(request.SerializeToString(), timeout=60).session_id
    tensor = tensor_pb2.Tensor(dtype="float32", shape=DIGIT.shape, content=DIGIT.tobytes())
    return predict_pb2.PredictRequest(session_id=session_id, batch=tensor).SerializeToString()


def drop_calls(address: str, seed: int) -> None:
    """Cancels calls at any moment, lets their deadlines pass, and closes the connection in the middle."""
    draw = random.Random(seed)
    channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", seed)])
    content, of_session = inference(), batch(channel)

    def cancel(call: grpc.Call) -> None:
        time.sleep(draw.choice([0.0, draw.uniform(0, 0.003)]))
        call.cancel()

    kinds: list[Callable[[], object]] = [
        lambda: cancel(channel.unary_unary(INFER).future(content, metadata=TRACED)),
        lambda: channel.unary_unary(INFER).future(content, timeout=draw.uniform(0, 0.01)),
        lambda: cancel(channel.stream_stream(INFER_STREAM)(iter([content] * 3))),
        lambda: cancel(channel.stream_stream(PREDICT_STREAM)(iter([of_session] * 3), metadata=TRACED)),
    ]
    for number in range(CALLS * len(kinds)):
        kinds[number % len(kinds)]()
    left = [channel.stream_stream(INFER_STREAM)(iter([content] * 3)) for _ in range(10)]
    channel.close()
    del left


def test_dropped_calls_hurt_nobody(looked_at: tuple[str, subprocess.Popen[str], Path], agent: Agent) -> None:
    address, process, log = looked_at
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(drop_calls, [address] * CLIENTS, range(1, CLIENTS + 1)))
    assert process.poll() is None, log.read_text("utf-8")[-2000:]
    answer = agent(
        *("predict", "dataset", f"--agent={address}", "--framework_name=ONNXRuntime", "--num_file_parts=1")
    )
    assert answer.code == 0, answer.stderr
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    ended = [line for line in lines if "code" in line]
    assert len(ended) > CLIENTS * CALLS
    assert {"CANCELLED"} <= {line["code"] for line in ended}
    assert all(line["peer"] for line in ended)
    assert not [line for line in lines if "exception" in line or "Traceback" in json.dumps(line)]
