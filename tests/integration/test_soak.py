"""Many clients, most of them misbehaving, against an agent whose predictors fail: it keeps serving.

``INFEROMETER_SOAK_S`` says for how many seconds; a longer run finds slower leaks.
"""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from agent_client import BATCH, Client
from fake_framework import SIDE
from faulty_framework import write_faulty_manifests
from soaked_agent import MAX_MESSAGE_BYTES, SECRET

from inferometer.protos.inference.v2 import grpc_service_pb2 as v2
from inferometer.protos.inferometer.v1 import predict_pb2

SOAK_S = float(os.environ.get("INFEROMETER_SOAK_S", "10"))
CLIENTS = 12
TIMEOUT_S = 20
# A short run has not met every size of every thread's memory after its first half.
GROWTH = 1.05 if SOAK_S >= 120 else 1.1
INFER = "/inference.GRPCInferenceService/ModelInfer"
METHODS = (
    INFER,
    "/inference.GRPCInferenceService/ModelStreamInfer",
    "/inferometer.v1.PredictService/Open",
    "/inferometer.v1.PredictService/Predict",
    "/inferometer.v1.PredictService/PredictStream",
    "/inferometer.v1.RegistryService/ListModels",
)
RIGHT = (("authorization", f"Bearer {SECRET}"),)
WRONG = ((), (("authorization", "Bearer open"),), (("authorization", SECRET),), (("authorization", ""),))
Code = grpc.StatusCode


def infer_request(model, batch):
    tensor = v2.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=batch.shape)
    return v2.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=[batch.tobytes()])


@dataclass
class Answer:
    """How a call ended: its code, its message, and the last message of the answer."""

    code: grpc.StatusCode
    details: str
    content: bytes


class SoakClient:
    """Sends one request after the other, drawn from a seed, and looks at each answer."""

    def __init__(self, address, seed):
        self.random = random.Random(seed)
        self.counts = Counter()
        self._address = address
        self._channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._actions = (
            *(self.valid, self.valid, self.valid, self.session, self.stream, self.flaky, self.flaky),
            *(self.oversized, self.truncated, self.random_bytes, self.unauthorized, self.unauthorized),
            *(self.wrong_shape, self.unknown_model, self.cancelled, self.late),
        )

    def run(self, until_s):
        while time.monotonic() < until_s:
            self.once()
        self.close()
        return self.counts

    def once(self):
        action = self.random.choice(self._actions)
        action()
        self.counts[action.__name__] += 1

    def close(self):
        self._channel.close()

    def valid(self):
        batch = np.full((self.random.randint(1, 4), 1, SIDE, SIDE), self.random.random(), np.float32)
        answer = self._call(INFER, infer_request("Echo", batch).SerializeToString())
        assert answer.code is Code.OK, answer
        [content] = v2.ModelInferResponse.FromString(answer.content).raw_output_contents
        assert content == batch.tobytes()

    def session(self):
        opened = self._call("/inferometer.v1.PredictService/Open", _open_request("Mean"))
        if opened.code is Code.RESOURCE_EXHAUSTED:  # the others have theirs open
            return
        assert opened.code is Code.OK, opened
        id_ = predict_pb2.OpenResponse.FromString(opened.content).session_id
        answer = self._call("/inferometer.v1.PredictService/Predict", _predict_request(id_))
        assert answer.code is Code.OK, answer
        assert len(predict_pb2.PredictResponse.FromString(answer.content).input_ids) == 1
        closed = self._call(
            "/inferometer.v1.PredictService/Close",
            predict_pb2.CloseRequest(session_id=id_).SerializeToString(),
        )
        assert closed.code is Code.OK, closed

    def stream(self):
        requests = [infer_request("Echo", BATCH).SerializeToString()] * self.random.randint(1, 5)
        answer = self._call("/inference.GRPCInferenceService/ModelStreamInfer", *requests)
        assert answer.code in {Code.OK, Code.RESOURCE_EXHAUSTED}, answer

    def flaky(self):
        model = self.random.choice(("Flaky", "Flaky", "Broken", "OutOfMemory", "NoArray"))
        answer = self._call(INFER, infer_request(model, BATCH).SerializeToString())
        assert answer.code in {Code.OK, Code.INTERNAL, Code.RESOURCE_EXHAUSTED}, answer

    def oversized(self):
        answer = self._call(self.random.choice(METHODS), bytes(MAX_MESSAGE_BYTES + 1))
        assert answer.code is Code.RESOURCE_EXHAUSTED, answer

    def truncated(self):
        whole = infer_request("Echo", BATCH).SerializeToString()
        answer = self._call(INFER, whole[: self.random.randrange(1, len(whole))])
        assert answer.code in {Code.INVALID_ARGUMENT, Code.NOT_FOUND}, answer

    def random_bytes(self):
        answer = self._call(
            self.random.choice(METHODS), b"\xff" + self.random.randbytes(self.random.randrange(500))
        )
        assert answer.code in {Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.OK}, answer

    def unauthorized(self):
        answer = self._call(
            self.random.choice(METHODS),
            infer_request("Echo", BATCH).SerializeToString(),
            metadata=self.random.choice(WRONG),
        )
        assert answer.code is Code.UNAUTHENTICATED, answer
        assert not answer.content

    def wrong_shape(self):
        batch = np.zeros((1, 1, SIDE, self.random.choice((0, 1, SIDE + 1))), np.float32)
        answer = self._call(INFER, infer_request("Echo", batch).SerializeToString())
        assert answer.code is Code.INVALID_ARGUMENT, answer

    def unknown_model(self):
        answer = self._call(INFER, infer_request(f"model {self.random.random()}", BATCH).SerializeToString())
        assert answer.code is Code.NOT_FOUND, answer

    def cancelled(self):
        """Leaves in the middle, one time with the whole connection."""
        channel = grpc.insecure_channel(self._address)
        call = channel.stream_stream(self.random.choice(METHODS))(
            iter([infer_request("Echo", BATCH).SerializeToString()]), metadata=RIGHT
        )
        if self.random.random() < 0.5:
            call.cancel()
        channel.close()

    def late(self):
        answer = self._call(INFER, infer_request("Echo", BATCH).SerializeToString(), timeout_s=0.0005)
        assert answer.code in {Code.OK, Code.DEADLINE_EXCEEDED}, answer

    def _call(self, path, *contents, metadata=RIGHT, timeout_s=TIMEOUT_S):
        """Sends bytes as they are, and checks that the status says nothing of the agent's inside."""
        call = self._channel.stream_stream(path)(iter(contents), metadata=metadata, timeout=timeout_s)
        last = b""
        try:
            for message in call:
                last = message
        except grpc.RpcError as error:
            details = error.details() or ""
            for part in ("Traceback", 'File "', ".py", "sesame", "\n"):
                assert part not in details, details
            return Answer(error.code(), details, last)
        return Answer(Code.OK, "", last)


def _open_request(model):
    return predict_pb2.OpenRequest(model_name=model).SerializeToString()


def _predict_request(session_id):
    request = predict_pb2.PredictRequest(session_id=session_id)
    request.batch.dtype = "float32"
    request.batch.shape.extend(BATCH.shape)
    request.batch.content = BATCH.tobytes()
    return request.SerializeToString()


@pytest.fixture
def soaked(manifest_folder):
    """The process of an agent, and its address."""
    write_faulty_manifests(manifest_folder)
    with (manifest_folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("soaked_agent.py"), manifest_folder],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
            process.communicate()


def soak(address, seconds, seed):
    until_s = time.monotonic() + seconds
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(SoakClient(address, f"{seed} {n}").run, until_s) for n in range(CLIENTS)]
        return sum((client.result() for client in clients), Counter())


@pytest.mark.timeout(SOAK_S * 3 + 120)
def test_agent_goes_on_answering_whatever_it_is_sent(soaked, manifest_folder):
    process, address = soaked
    agent = psutil.Process(process.pid)
    counts = soak(address, SOAK_S / 2, "first")  # every model is loaded, and every thread there is started
    before_bytes, before_threads = agent.memory_info().rss, agent.num_threads()
    counts += soak(address, SOAK_S / 2, "second")
    after_bytes, after_threads = agent.memory_info().rss, agent.num_threads()
    assert set(counts) == {action.__name__ for action in SoakClient(address, 0)._actions}
    assert process.poll() is None
    last = SoakClient(address, "last")
    for action in dict.fromkeys(last._actions):
        action()
    last.close()
    with grpc.insecure_channel(address) as channel:
        assert Client(channel).checked() == 1
    assert after_bytes <= before_bytes * GROWTH, f"{counts.total()} requests: {before_bytes} → {after_bytes}"
    assert after_threads <= before_threads + CLIENTS
    log = (manifest_folder / "log").read_text()
    assert SECRET not in log
    assert "exception.calling" not in log.casefold()
    process.terminate()
    assert process.wait(30) == 0
