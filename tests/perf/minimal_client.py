"""The least that an open-loop client in Python does: ``python -m tests.perf.minimal_client HOST:PORT``.

For each line on stdin, ``[RATE, SECONDS]``, it sends a prepared request at the times of a Poisson process,
stamps the answers as they come, and prints its figures as JSON. Of what grpcio offers, this took the least
processor time: futures of the sync stub in one channel, on which a call stays open (as with
``ServerConnection.hold``), sent by a thread that only sleeps, with the least slack of its timers. It knows
neither errors nor timeouts, and reads no answer.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from numpy.typing import NDArray

from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from tests.perf.instant_server import MODEL, SHAPE

_LEAD_NS = 1_000_000
_METHOD = "/inference.GRPCInferenceService/ModelInfer"


def cpu_s() -> float:
    """The processor time of this process until now."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def figures(
    latency_ns: NDArray[np.int64], lag_ns: NDArray[np.int64], cpu_s: float, queries: int
) -> Mapping[str, float]:
    """What a client reports, in µs: from due to answer, how late it sent, and a query's processor time."""
    percents = {
        "p50": (latency_ns, 50),
        "p99": (latency_ns, 99),
        "lag50": (lag_ns, 50),
        "lag99": (lag_ns, 99),
    }
    times_us = {name: float(np.percentile(times, p)) / 1e3 for name, (times, p) in percents.items()}
    return {**times_us, "cpu": cpu_s / queries * 1e6}


def _run(
    send: Callable[[bytes], grpc.Future[bytes]], request: bytes, rate: float, seconds: float
) -> Mapping[str, float]:
    gaps_s = np.random.default_rng(0).standard_exponential(round(rate * seconds)) / rate
    due_ns = (np.cumsum(gaps_s) * 1e9).astype(np.int64)
    count, clock = len(due_ns), time.perf_counter_ns
    sent, done, left = [0] * count, [0] * count, threading.Semaphore(0)

    def stamp(query: int) -> Callable[[object], None]:
        def stamped(call: object) -> None:
            done[query] = clock()
            if query == count - 1:
                left.release()

        return stamped

    gc.collect()
    gc.freeze()
    began_cpu_s, began_ns = cpu_s(), clock() + _LEAD_NS
    for query, offset_ns in enumerate(due_ns.tolist()):
        due = began_ns + offset_ns
        while (now := clock()) < due:
            time.sleep((due - now) / 1e9)
        sent[query] = now
        send(request).add_done_callback(stamp(query))
    left.acquire()
    used_s = cpu_s() - began_cpu_s
    time.sleep(0.1)  # answers that the last one has overtaken
    gc.unfreeze()
    assert all(done)
    latency_ns = np.array(done) - began_ns - due_ns
    return figures(latency_ns, np.array(sent) - began_ns - due_ns, used_s, count)


def main() -> None:
    """Runs until stdin ends."""
    Path("/proc/self/timerslack_ns").write_text("1")
    item = pb.ModelInferRequest.InferInputTensor(name="data", datatype="FP32", shape=SHAPE)
    content = np.zeros(SHAPE, np.float32).tobytes()
    request = pb.ModelInferRequest(model_name=MODEL, inputs=[item], raw_input_contents=[content])
    with grpc.insecure_channel(sys.argv[1]) as channel:
        infer = channel.unary_unary(_METHOD)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        infer(request.SerializeToString())
        print("ready", flush=True)
        for line in sys.stdin:
            rate, seconds = json.loads(line)
            print(json.dumps(_run(infer.future, request.SerializeToString(), rate, seconds)), flush=True)
        watch.cancel()


if __name__ == "__main__":
    main()
