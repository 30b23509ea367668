"""Mixed calls to agents whose processes are killed: answers are right, and only the calls of those are lost.

Models of MXNet and ONNX Runtime get one to four inputs from clients over gRPC and HTTP, and each answer is
compared with that of the model in this process. ``INFEROMETER_SOAK_CALLS`` is the least number of calls and
``INFEROMETER_SOAK_KILLS`` that of the kills; ``make soak`` takes 100,000 and 20.
"""

from __future__ import annotations

import http.client
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from rest_client import Rest, binary_input, scores_of

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.manifests.catalog import Catalog
from inferometer.protos.inference.v2 import grpc_service_pb2 as v2
from inferometer.protos.inference.v2.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from tests.cli.conftest import COMMAND
from tests.model_files import save_symbol
from tests.pictured_models import write_models

CALLS = int(os.environ.get("INFEROMETER_SOAK_CALLS", "2000"))
KILLS = int(os.environ.get("INFEROMETER_SOAK_KILLS", "3"))
MOST_GROWTH = 1.05 if CALLS >= 50_000 else 1.2
"""Of the memory of a process after a fifth of the calls; a short run has not met every size by then."""
MOST_INPUTS, MOST_BATCH = 4, 8
WORKERS = 4
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
TIMEOUT_S = 60
LIMIT_S = 120 + CALLS / 50 + 30 * KILLS
MODELS = {"DigitsCNN@MXNet": (1, 16, 16), "DigitsCNN@ONNXRuntime": (1, 16, 16)}
MODELS |= {"Net": (3, 8, 8), "Enhancer": (3, 8, 8)}  # the first one in MXNet
INPUT = {"DigitsCNN@MXNet": "data", "DigitsCNN@ONNXRuntime": "data", "Net": "data", "Enhancer": "image"}
_NET = """
name: Net
framework: {name: MXNet, version: "*"}
inputs: [{type: image, parameters: {dimensions: [3, 8, 8], input_layer: data, crop_method: none}}]
output: {type: raw}
model: {graph_path: net-symbol.json, weights_path: net-0000.params}
"""


@dataclass(frozen=True)
class Truth:
    """Inputs of a model, and what it answers to each."""

    inputs: np.ndarray
    outputs: np.ndarray


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("models")
    save_symbol(found)
    (found / "Net.yml").write_text(_NET)
    return write_models(found)


@pytest.fixture(scope="module")
def truths(folder) -> dict[str, Truth]:
    catalog, generator, found = Catalog([folder]), np.random.default_rng(0), {}
    for name, shape in MODELS.items():
        model, _, framework = name.partition("@")
        [manifest] = [each for each in catalog.find_models(model) if framework in ("", each.framework.name)]
        session = open_session(manifest, SessionOptions(threads=1), Registry())
        inputs = generator.standard_normal((64, *shape), np.float32)
        answers = [session.infer({INPUT[name]: one[np.newaxis]}).outputs for one in inputs]
        found[name] = Truth(inputs, np.concatenate([next(iter(each.values())) for each in answers]))
        session.close()
    return found


@dataclass
class Agent:
    """A served agent: its process, and where it is reached."""

    process: psutil.Process
    address: str
    url: str
    family: list[psutil.Process] = field(default_factory=list)

    def end(self) -> None:
        """Stops the agent with all its processes, which ``family`` then lists; again does nothing."""
        with suppress(psutil.NoSuchProcess):
            self.family += [self.process, *self.process.children(recursive=True)]
            self.process.terminate()

    def children(self, of: psutil.Process | None = None) -> list[psutil.Process]:
        """The fresh processes that a process of the agent has started."""
        found = []
        with suppress(psutil.NoSuchProcess):
            for each in (of or self.process).children():
                with suppress(psutil.Error):  # it has just ended
                    if any("spawn_main" in part for part in each.cmdline()):
                        found.append(each)
        return found


@contextmanager
def serve(folder: Path, *options: str) -> Iterator[Agent]:
    """Serves the models; afterwards, no process and no shared memory must be left."""
    before = _shared_memory()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AGENT_")}
    environment |= {"AGENT_DATA_DIR": str(folder / "data"), "PYTHONPATH": os.pathsep.join(sys.path)}
    given = (f"--manifests={folder}", "--http_port=0", "--threads=1", f"--max_batch_size={MOST_BATCH}")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*COMMAND, *given, *options], stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
    try:
        assert process.stdout is not None
        address, url = (process.stdout.readline().split()[-1] for _ in range(2))
        root = psutil.Process(process.pid)
        agent = Agent(root, address, url)
        yield agent
        agent.end()
        assert process.wait(TIMEOUT_S) == 0
        assert not psutil.wait_procs(agent.family, 10)[1]
        wait_for(lambda: not _shared_memory() - before)  # others may be about to map or remove theirs
    finally:
        process.kill()
        process.communicate()


def _shared_memory() -> set[str]:
    """The user's shared memory that no process has open; that of others may come and go.

    It is listed first: what another process makes meanwhile is not taken for one that is left.
    """
    with os.scandir("/dev/shm") as entries:
        found = {each.name for each in entries if each.stat().st_uid == os.getuid()}
    for process in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # it has ended
            found -= set(re.findall(r"/dev/shm/(\S+)", process.read_text()))
    return found


def over_grpc(agent: Agent, stack: ExitStack, waits: bool) -> Callable[[str, np.ndarray], np.ndarray]:
    channel = stack.enter_context(grpc.insecure_channel(agent.address, options=OWN_CONNECTION))
    infer = GRPCInferenceServiceStub(channel).ModelInfer

    def ask(model: str, batch: np.ndarray) -> np.ndarray:
        tensor = v2.ModelInferRequest.InferInputTensor(name=INPUT[model], datatype="FP32", shape=batch.shape)
        request = v2.ModelInferRequest(
            model_name=model, inputs=[tensor], raw_input_contents=[batch.tobytes()]
        )
        try:
            answer = infer(request, timeout=TIMEOUT_S, wait_for_ready=waits)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            raise LostError(error.details()) from error
        [content] = answer.raw_output_contents
        return np.frombuffer(content, np.float32).reshape(answer.outputs[0].shape)

    return ask


def over_http(agent: Agent, stack: ExitStack, _: bool) -> Callable[[str, np.ndarray], np.ndarray]:
    rest = stack.enter_context(closing(Rest(agent.url)))

    def ask(model: str, batch: np.ndarray) -> np.ndarray:
        head = {"inputs": [binary_input(batch, name=INPUT[model])]}
        try:
            answer = rest.infer(head, batch.tobytes(), model=model)
        except (OSError, http.client.HTTPException) as error:
            rest.close()
            raise LostError(f"{type(error).__name__}: {error}") from error
        if answer.status == 503:
            raise LostError(answer.error)
        assert answer.status == 200, answer
        return scores_of(answer)

    return ask


class LostError(Exception):
    """A request that its client may send again."""


class Load:
    """Clients in a closed loop, each on a connection of its own, half of them over HTTP."""

    def __init__(self, agent: Agent, truths: dict[str, Truth], clients: int) -> None:
        self.answered = 0
        self.lost: list[str] = []
        self.waits = True  # for a connection
        self._agent, self._truths, self._clients = agent, truths, clients
        self._lock = threading.Lock()

    def run(self, calls: int, meanwhile: Callable[[], None] = lambda: None, seed: int = 0) -> None:
        """Sends at least so many calls, and goes on until ``meanwhile`` has returned."""
        ended, goal = threading.Event(), self.answered + calls

        def client(number: int) -> None:
            with ExitStack() as stack:
                loop((over_grpc, over_http)[number % 2](self._agent, stack, self.waits), number)

        def loop(ask: Callable[[str, np.ndarray], np.ndarray], number: int) -> None:
            draw = np.random.default_rng((seed, number))
            while not (ended.is_set() and self.answered >= goal):
                model = [*MODELS][draw.integers(len(MODELS))]
                truth = self._truths[model]
                rows = draw.integers(len(truth.inputs), size=draw.integers(1, MOST_INPUTS + 1))
                try:
                    found = ask(model, truth.inputs[rows])
                except LostError as error:
                    self.lost.append(str(error))
                    time.sleep(0.01)  # who asks again at once asks thousands of times a second
                    continue
                np.testing.assert_allclose(found, truth.outputs[rows], rtol=1e-4, atol=1e-4, err_msg=model)
                with self._lock:
                    self.answered += 1

        with ThreadPoolExecutor(self._clients) as pool:
            running = [pool.submit(client, number) for number in range(self._clients)]
            try:
                meanwhile()
            finally:
                ended.set()
            for each in running:
                each.result()

    def wait_for_more(self, calls: int) -> None:
        """Waits until so many more calls are answered."""
        goal = self.answered + calls
        wait_for(lambda: self.answered >= goal, LIMIT_S)


def wait_for(condition: Callable[[], bool], deadline_s: float = 2 * TIMEOUT_S) -> None:
    """Waits until a condition holds; fails after a deadline."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, f"{condition} does not hold after {deadline_s:g} s"
        time.sleep(0.02)


def memory_of(processes: list[psutil.Process]) -> int:
    """The largest resident memory of one of them."""
    return max(each.memory_info().rss for each in processes)


@pytest.mark.timeout(LIMIT_S)
def test_killed_instances_lose_their_own_batches_alone(folder, truths) -> None:
    with serve(folder, "--instances=3") as agent:
        load, lost_before = Load(agent, truths, 8), []
        load.run(CALLS // 5)
        assert not load.lost
        first = memory_of([agent.process]), memory_of(agent.children())
        assert len(agent.children()) == 4  # of two models of MXNet, two each

        def kill() -> None:
            for number in range(KILLS):
                load.wait_for_more(CALLS * 4 // 5 // (KILLS + 1))
                lost_before.append(len(load.lost))
                victim = random.Random(number).choice(agent.children())
                victim.kill()
                wait_for(lambda victim=victim: victim not in agent.children() and len(agent.children()) == 4)

        load.run(CALLS * 4 // 5, kill, seed=1)
        last = memory_of([agent.process]), memory_of(agent.children())
    lost = np.diff([*lost_before, len(load.lost)])
    sys.stdout.write(f"{load.answered} answers, lost by each kill: {lost}, bytes: {first} → {last}\n")
    assert load.answered >= CALLS
    assert all("instance of" in each and "was ended by SIGKILL" in each for each in load.lost), load.lost
    assert max(lost) <= MOST_BATCH
    assert all(after <= MOST_GROWTH * before for before, after in zip(first, last, strict=True))


def serves(worker: psutil.Process) -> bool:
    """Whether a worker accepts connections."""
    with suppress(psutil.Error):
        return any(each.status == psutil.CONN_LISTEN for each in worker.net_connections("tcp"))
    return False


def reload(agent: Agent, ended: threading.Event) -> Counter[str]:
    """Unloads and loads models in all workers until ``ended``; returns how often, and what failed."""
    found: Counter[str] = Counter()
    while not ended.is_set():
        for model in ("Enhancer", "DigitsCNN@ONNXRuntime"):
            with grpc.insecure_channel(agent.address, options=OWN_CONNECTION) as channel:
                stub = GRPCInferenceServiceStub(channel)
                unload, load = v2.RepositoryModelUnloadRequest, v2.RepositoryModelLoadRequest
                try:
                    stub.RepositoryModelUnload(unload(model_name=model), timeout=TIMEOUT_S)
                    stub.RepositoryModelLoad(load(model_name=model), timeout=TIMEOUT_S)
                    found["reloaded"] += 1
                except grpc.RpcError as error:  # it has asked the worker that was killed
                    found[error.code().name] += 1
    return found


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_killed_workers_lose_their_own_calls_alone_and_a_drain_loses_none(folder, truths) -> None:
    with serve(folder, f"--workers={WORKERS}", "--instances=2", "--drain_s=0.5") as agent:
        load, lost_before, used = Load(agent, truths, 24), [], []
        load.run(CALLS // 5)
        assert not load.lost
        first = memory_of([agent.process]), memory_of(agent.children())
        ended = threading.Event()

        def kill() -> None:
            for number in range(KILLS):
                load.wait_for_more(CALLS * 4 // 5 // (KILLS + 1))
                lost_before.append(len(load.lost))
                workers = agent.children()
                victim = random.Random(number).choice(workers)
                found = Counter(each.status for each in victim.net_connections("tcp"))
                used.append(found[psutil.CONN_ESTABLISHED])
                victim.kill()
                wait_for(
                    lambda workers=workers: (
                        len(agent.children()) == WORKERS
                        and agent.children() != workers
                        and all(map(serves, agent.children()))
                    )
                )

        with ThreadPoolExecutor(1) as pool:
            reloads = pool.submit(reload, agent, ended)
            try:
                load.run(CALLS * 4 // 5, kill, seed=1)
            finally:
                ended.set()
        last = memory_of([agent.process]), memory_of(agent.children())
        killed, answered = load.lost[:], load.answered

        def drain() -> None:
            load.wait_for_more(100)
            agent.end()
            assert agent.process.wait(TIMEOUT_S) == 0

        load.waits = False
        load.run(0, drain, seed=2)
        refused = {each.partition(":")[0] for each in load.lost[len(killed) :]}
    lost = np.diff([*lost_before, len(killed)])
    sys.stdout.write(
        f"{answered} answers, {dict(reloads.result())}, lost by each kill: {lost} on {used} connections, "
        f"{dict(Counter(killed))}, bytes: {first} → {last}\n"
    )
    assert answered >= CALLS
    assert reloads.result().keys() <= {"reloaded", "UNAVAILABLE"}
    stopping = "the agent is stopping; try another one, or again later"
    assert refused == {stopping, "failed to connect to all addresses; last error", "ConnectionRefusedError"}
    # a second one where a client connects again while the kernel still closes the worker's sockets
    assert all(lost <= 2 * np.array(used))
    assert all(after <= MOST_GROWTH * before for before, after in zip(first, last, strict=True))
