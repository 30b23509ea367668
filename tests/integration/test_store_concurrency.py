"""Several processes publish at once and some die: nothing is lost, nothing is half stored."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.measurement import InputPrediction
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.manifests.errors import StoreError
from tests.contract.store_fixtures import (
    NxServer,
    StoreBackend,
    make_batches,
    make_evaluation,
    make_predictions,
    mongodb_backend,
    plain,
    plain_prediction,
)
from tests.evaluations import changed

PROCESSES = 4
EACH = 10
DEADLINE_S = 90.0
PROCESS = multiprocessing.get_context("forkserver")
"""Publishers are processes of their own, forked from one that has imported the store already."""
PROCESS.set_forkserver_preload(["pytest", "tests.contract.store_fixtures"])


@pytest.fixture(params=["sqlite", "mongodb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreBackend]:
    if request.param == "sqlite":
        yield StoreBackend(None, tmp_path / "data")
    else:
        with mongodb_backend(tmp_path) as mongodb:
            yield mongodb


@pytest.fixture
def name() -> str:
    return f"test_{os.getpid()}_{time.monotonic_ns()}"


class Deadly(tuple[InputPrediction, ...]):
    """Predictions on which the process that saves them dies in the middle."""

    def __iter__(self) -> Iterator[InputPrediction]:
        for place, prediction in enumerate(super().__iter__()):
            if place == len(self) // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield prediction

    def __reduce__(self) -> Any:
        return Deadly, (tuple(tuple.__iter__(self)),)


def publish(
    backend: StoreBackend, name: str, evaluations: list[Evaluation], start: Barrier, told: Connection
) -> None:
    """Runs in a process: publishes and tells, after each, whether it was new."""
    start.wait(DEADLINE_S)  # all make the database at the same time
    store = backend.open(name)
    for evaluation in evaluations:
        told.send(store.save(evaluation))
    store.close()
    told.close()


def start_publisher(
    backend: StoreBackend, name: str, evaluations: list[Evaluation], start: Barrier
) -> tuple[BaseProcess, Connection]:
    ours, theirs = PROCESS.Pipe(duplex=False)
    process = PROCESS.Process(target=publish, args=(backend, name, evaluations, start, theirs))
    process.start()
    theirs.close()
    return process, ours


def told_by(pipe: Connection) -> list[bool]:
    """What a publisher told until it ended."""
    answers = []
    with pipe:
        while pipe.poll(DEADLINE_S):
            try:
                answers.append(pipe.recv())
            except EOFError:
                return answers
    raise AssertionError("the publisher did not end in time")


def run_publishers(backend: StoreBackend, name: str, work: list[list[Evaluation]]) -> list[list[bool]]:
    start = PROCESS.Barrier(len(work))
    publishers = [start_publisher(backend, name, evaluations, start) for evaluations in work]
    try:
        answers = [told_by(pipe) for _, pipe in publishers]
        for process, _ in publishers:
            process.join(DEADLINE_S)
        assert [process.exitcode for process, _ in publishers] == [0] * len(work)
    finally:
        for process, _ in publishers:
            process.kill()
            process.join()
    return answers


def kept(backend: StoreBackend, name: str) -> list[Evaluation]:
    store = backend.open(name)
    try:
        return [
            changed(evaluation, predictions=tuple(store.predictions(evaluation.id)))
            for evaluation in store.find(EvaluationFilter())
        ]
    finally:
        store.close()


def test_four_processes_publish_at_once_and_nothing_is_lost(backend: StoreBackend, name: str) -> None:
    work = [
        [
            make_evaluation(times=make_batches(200, seed=seed), predictions=make_predictions(20))
            for seed in range(EACH)
        ]
        for _ in range(PROCESSES)
    ]
    assert run_publishers(backend, name, work) == [[True] * EACH] * PROCESSES
    found = {evaluation.id: plain(evaluation) for evaluation in kept(backend, name)}
    assert found == {evaluation.id: plain(evaluation) for part in work for evaluation in part}


def test_four_processes_publish_the_same_and_it_is_there_once(backend: StoreBackend, name: str) -> None:
    evaluations = [make_evaluation(predictions=make_predictions(50)) for _ in range(3)]
    answers = run_publishers(backend, name, [evaluations] * PROCESSES)
    assert [sum(column) for column in zip(*answers, strict=True)] == [1, 1, 1]
    assert {e.id: plain(e) for e in kept(backend, name)} == {e.id: plain(e) for e in evaluations}
    with backend.documents(name) as documents:
        assert len(list(documents["evaluation"].find({}))) == len(evaluations)
        assert len(list(documents["performance"].find({}))) == len(evaluations)


def test_a_process_killed_in_the_middle_leaves_no_half_evaluation(backend: StoreBackend, name: str) -> None:
    whole = make_evaluation()
    half = make_evaluation(predictions=Deadly(make_predictions(5_000)))
    start = PROCESS.Barrier(1)
    process, pipe = start_publisher(backend, name, [whole, half], start)
    assert told_by(pipe) == [True]
    process.join(DEADLINE_S)
    assert process.exitcode == -signal.SIGKILL

    assert [plain(evaluation) for evaluation in kept(backend, name)] == [plain(whole)]
    store = backend.open(name)
    again = changed(half, predictions=tuple(tuple.__iter__(half.measurement.predictions)))
    assert store.save(again) is True  # neither a lock nor what was left behind is in the way
    assert len(store.predictions(half.id)) == 5_000
    store.close()


def test_a_process_killed_at_any_time_loses_nothing_that_it_was_told_is_kept(
    backend: StoreBackend, name: str
) -> None:
    evaluations = [make_evaluation(times=make_batches(2_000)) for _ in range(200)]
    start = PROCESS.Barrier(1)
    process, pipe = start_publisher(backend, name, evaluations, start)
    for _ in range(5):
        assert pipe.poll(DEADLINE_S)
        pipe.recv()
    process.kill()
    told = 5 + len(told_by(pipe))
    process.join(DEADLINE_S)
    assert process.exitcode == -signal.SIGKILL
    found = {evaluation.id: plain(evaluation) for evaluation in kept(backend, name)}
    assert len(found) in {told, told + 1}  # it may have died before it could tell
    assert found == {evaluation.id: plain(evaluation) for evaluation in evaluations[: len(found)]}


def test_a_server_that_dies_between_opening_and_saving_is_an_error_in_one_line(tmp_path: Path) -> None:
    server = NxServer(tmp_path)
    try:
        address = f"mongodb://{server.address}/?serverSelectionTimeoutMS=300"
        store = StoreBackend(address, tmp_path).open("gone")
        server.stop()
        evaluation = make_evaluation()
        with pytest.raises(
            StoreError, match=f"{server.address}/gone: evaluation {evaluation.id} was not kept"
        ) as e:
            store.save(evaluation)
        assert "\n" not in str(e.value)
        assert len(str(e.value)) < 300
        with pytest.raises(StoreError, match="cannot be read"):
            store.find(EvaluationFilter())
        store.close()
    finally:
        server.stop()


def test_a_store_that_is_open_holds_no_lock(tmp_path: Path) -> None:
    store = StoreBackend(None, tmp_path).open("idle")
    store.save(make_evaluation())
    store.find(EvaluationFilter())
    other = sqlite3.connect(tmp_path / "idle.db", timeout=0, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    other.execute("ROLLBACK")
    other.close()
    store.close()


def test_reading_and_opening_do_not_wait_for_a_writer_but_saving_does(tmp_path: Path) -> None:
    store = StoreBackend(None, tmp_path).open("busy")
    first, second = make_evaluation(), make_evaluation()
    store.save(first)
    writer = sqlite3.connect(tmp_path / "busy.db", isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    reader = StoreBackend(None, tmp_path).open("busy")
    assert [e.id for e in reader.find(EvaluationFilter())] == [first.id]
    reader.close()
    release = threading.Timer(0.3, lambda: writer.execute("ROLLBACK"))
    release.start()
    assert store.save(second) is True
    assert not release.is_alive()
    release.join()
    writer.close()
    assert [plain_prediction(p) for p in store.predictions(second.id)] == []
    assert {e.id for e in store.find(EvaluationFilter())} == {first.id, second.id}
    store.close()
