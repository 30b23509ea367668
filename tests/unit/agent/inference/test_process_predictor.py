"""A predictor in a process of its own: what passes to it and back, how it ends, and how it starts again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from pipeline_fakes import EchoPredictor, manifest, wait_until
from process_fakes import MIB, ApartPredictor

from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.child_process import ChildProcess, start_child
from inferometer.agent.hardware.environment import CPU, PredictorOptions
from inferometer.agent.inference import process_predictor
from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.inference.process_predictor import ProcessPredictor, open_instance
from inferometer.agent.serving.served_models import used_bytes
from inferometer.manifests.errors import (
    ArtifactError,
    ConfigurationError,
    InstanceLostError,
    OutOfMemoryError,
    PredictionError,
)

SEGMENTS = Path("/dev/shm")


def apart(seed: int = 0) -> Predictor:
    return ApartPredictor(manifest(), Artifacts(), PredictorOptions(threads=2, seed=seed))


@pytest.fixture(scope="module")
def instance() -> Iterator[Predictor]:
    with_process = open_instance(apart())
    yield with_process
    with_process.close()


def predicted(instance: Predictor, *numbers: float) -> dict[str, np.ndarray]:
    with instance.turn():
        return dict(instance.predict({"data": np.array(numbers, np.float32).reshape(-1, 1)}))


def process_of(instance: Predictor) -> int:
    return int(predicted(instance, 0)["pid"][0])


def test_it_runs_in_another_process_with_the_same_options(instance: Predictor) -> None:
    assert isinstance(instance, ProcessPredictor)
    assert process_of(instance) == process_of(instance) != os.getpid()
    assert (instance.threads, instance.fixed_outputs) == (2, {"loss": 7})


def test_tensors_of_any_size_pass_and_stay_valid(instance: Predictor) -> None:
    small = predicted(instance, 1, 8)["data"]
    large = predicted(instance, *(2.0 for _ in range(30)))["data"]  # 12 MB, which the memory has to grow for
    again = predicted(instance, *range(20, 50))["data"]

    assert small.tolist() == [[1], [8]]
    assert large.shape == (30, 100_000)
    assert (large == 2).all()
    assert again[:, 0].tolist() == list(range(20, 50))


@pytest.mark.parametrize("number", [1, 2])  # for the inputs, and for the outputs
def test_too_little_shared_memory_fails_only_the_batch(
    instance: Predictor, monkeypatch: pytest.MonkeyPatch, number: float
) -> None:
    before = process_of(instance)
    predicted(instance, *(0 for _ in range(20_000)))
    allocate = os.posix_fallocate
    most = 1000 if number == 1 else 20_000_000

    def full(descriptor: int, offset: int, size: int) -> None:
        if size > most:
            raise OSError("the device is full")
        allocate(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    count = 2_000_000 if number == 1 else 100
    with pytest.raises(OutOfMemoryError, match="too little shared memory"):
        predicted(instance, *(number for _ in range(count)))
    monkeypatch.undo()
    assert process_of(instance) == before
    assert predicted(instance, 8)["data"].tolist() == [[8]]


def test_all_tensors_are_aligned(instance: Predictor) -> None:
    inputs = {"data": np.array([[10]], np.int8), "more": np.zeros((1, 3), np.float32)}
    assert instance.predict(inputs)["beyond"].tolist() == [0, 0]


def test_strings_and_empty_tensors_pass(instance: Predictor) -> None:
    outputs = predicted(instance, 6)
    assert outputs["text"].tolist() == [["two", "words"]]
    assert (outputs["empty"].shape, outputs["empty"].dtype) == ((1, 0), np.int8)


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [(3, PredictionError, "the framework failed"), (4, RuntimeError, "ZeroDivisionError: a fault")],
)
def test_errors_come_back_and_the_process_goes_on(
    instance: Predictor, number: int, kind: type[Exception], message: str
) -> None:
    before = process_of(instance)
    with pytest.raises(kind, match=f"^{message}$"):
        predicted(instance, number)
    assert process_of(instance) == before


def test_a_process_that_dies_loses_its_batch_and_starts_again(
    instance: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = process_of(instance)
    lost = pytest.raises(
        InstanceLostError, match=r"instance of model Echo .* was ended by SIGKILL; .*try again$"
    )
    with monkeypatch.context() as patch, lost:
        patch.setattr(process_predictor, "start_child", no_child)  # no process predicts it again
        predicted(instance, 5)
    wait_until(lambda: instance.is_alive)  # after a pause, if it was tried again meanwhile
    assert process_of(instance) not in (before, os.getpid())
    assert predicted(instance, 9)["data"].tolist() == [[9]]


def test_a_process_that_cannot_start_is_tried_again_ever_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s, starts = [100.0], []
    clock = SimpleNamespace(monotonic=lambda: now_s[0], sleep=time.sleep)
    monkeypatch.setattr(process_predictor, "time", clock)
    instance = open_instance(apart())
    assert isinstance(instance, ProcessPredictor)
    with instance.turn(), monkeypatch.context() as patch:  # the thread that keeps it waits

        def fail(*_: object) -> ChildProcess:
            starts.append(now_s[0])
            raise ArtifactError("the file is gone")

        patch.setattr(process_predictor, "start_child", fail)
        os.kill(instance._children[0].process.pid or 0, signal.SIGKILL)
        wait_until(lambda: not instance.is_alive)
        for _ in range(600):
            with pytest.raises(InstanceLostError, match=r"cannot be started again: the file is gone$"):
                predicted(instance, 1)
            now_s[0] += 0.25
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert [each.levelname for each in caplog.records] == ["WARNING", "ERROR"]
    assert "again: the file is gone; this is repeated with pauses of up to 30 s" in caplog.text
    now_s[0] += 30
    assert predicted(instance, 9)["data"].tolist() == [[9]]
    instance.close()


def no_child(*_: object) -> ChildProcess:
    raise InstanceLostError("there is none")


def test_a_process_that_dies_while_it_is_idle_starts_again_at_once(instance: Predictor) -> None:
    before = process_of(instance)
    assert isinstance(instance, ProcessPredictor)
    assert instance.is_alive
    with instance.turn():  # the other thread waits
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: not instance.is_alive)
    wait_until(lambda: instance.is_alive)
    [child] = instance._children
    assert child.process.pid != before
    assert process_of(instance) == child.process.pid


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_process_that_dies_while_it_is_idle_loses_nothing(instance: Predictor, is_noticed: bool) -> None:
    before = process_of(instance)
    if is_noticed:
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: has_ended(before))
    else:  # it gets the message, but does not read it any more
        os.kill(before, signal.SIGSTOP)
        threading.Timer(0.1, os.kill, (before, signal.SIGKILL)).start()
    assert process_of(instance) != before


def test_the_signals_of_a_terminal_or_a_supervisor_do_not_end_it(instance: Predictor) -> None:
    before = process_of(instance)
    assert predicted(instance, 7)["pid"] == [before]
    assert process_of(instance) == before


@pytest.mark.parametrize(
    ("seed", "kind", "message"),
    [(13, ArtifactError, "the file is gone"), (14, InstanceLostError, "ended with code 3")],
)
def test_a_model_that_cannot_be_loaded_leaves_nothing(
    seed: int, kind: type[Exception], message: str, left: Callable[[], tuple[list[int], list[str]]]
) -> None:
    with pytest.raises(kind, match=message):
        open_instance(apart(seed))
    assert left() == ([], [])


def test_closing_ends_the_process_and_frees_the_memory(
    left: Callable[[], tuple[list[int], list[str]]],
) -> None:
    instance = open_instance(apart())
    predicted(instance, 2)
    assert [len(each) for each in left()] == [1, 2]
    instance.close()
    assert left() == ([], [])
    instance.close()


def test_the_process_frees_the_memory_of_a_parent_that_was_killed(left: Callable[[], object]) -> None:
    before = left()
    instance = open_instance(apart())
    predicted(instance, 2)
    assert isinstance(instance, ProcessPredictor)
    [child] = instance._children
    with instance.turn():  # it does not start again meanwhile
        child.connection.close()  # as the parent's end does
        child.join(30)
        assert left() == before
    assert predicted(instance, 9)["data"].tolist() == [[9]]
    instance.close()
    assert left() == before


HANGING = """
import threading
from test_process_predictor import apart, open_instance, predicted, process_of, wait_until

instance = open_instance(apart())
child = process_of(instance)
threading.Thread(target=predicted, args=(instance, 11), daemon=True).start()
wait_until(lambda: instance._inputs.buffer[0] == 1)
print(child, flush=True)
threading.Event().wait()
"""


def test_a_process_that_hangs_ends_with_its_parent() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HANGING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    try:
        child.wait(20)
    finally:
        with suppress(psutil.NoSuchProcess):
            child.kill()


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[list[int], list[str]]]:
    """What instances leave behind: processes, and segments of shared memory."""
    pids, names = [], []

    def start(*given: Any) -> ChildProcess:
        child = start_child(*given)
        pids.append(child.process.pid)
        return child

    def create(**given: Any) -> SharedMemory:
        block = SharedMemory(**given)
        names.append(block.name)
        return block

    monkeypatch.setattr(process_predictor, "start_child", start)
    monkeypatch.setattr(process_predictor, "SharedMemory", create)
    return lambda: (
        [pid for pid in pids if psutil.pid_exists(pid)],
        [name for name in names if (SEGMENTS / name).exists()],
    )


def test_the_memory_of_the_process_counts() -> None:
    before = used_bytes(CPU)
    instance = open_instance(apart(200))
    try:
        after = used_bytes(CPU)
        assert before is not None
        assert after is not None
        assert after - before > 200 * MIB
    finally:
        instance.close()


def test_by_default_an_instance_is_another_predictor_in_this_process() -> None:
    first = EchoPredictor()
    further = open_instance(first)
    assert type(further) is EchoPredictor
    assert further is not first
    assert (further.loads, first.loads) == (1, 0)


def test_a_model_in_memory_has_one_instance() -> None:
    artifacts = Artifacts(in_memory=object())
    with pytest.raises(
        ConfigurationError, match=r"^model Echo .*: is in memory, and so has one instance; save"
    ):
        open_instance(EchoPredictor(artifacts=artifacts))
