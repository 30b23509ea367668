"""The times of the pipeline's stages, and what runs while a batch is predicted."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pipeline_fakes import (
    DEADLINE_S,
    PREPROCESS_NS,
    SHORTLY_S,
    EchoPredictor,
    ManualClock,
    TimedPreprocessor,
    answers,
    failures,
    inputs,
    manifest,
    number,
    opened,
    wait_for,
    wait_until,
)

from inferometer.agent.inference.stages import Postprocessor, Stage, StageTimes
from inferometer.agent.preprocessing.inputs import EncodedImage, Origin, Payload, Tensors, Url
from inferometer.agent.preprocessing.model_preprocessor import ModelPreprocessor
from inferometer.agent.preprocessing.preprocessor import ImagePreprocessor
from inferometer.agent.tasks.predictions import Outputs
from inferometer.manifests.errors import InputError

READ_NS, FETCH_NS, PREDICT_NS, POSTPROCESS_NS = 1, 10, 1_000, 10_000


class TimedPostprocessor(Postprocessor):
    """Takes ``POSTPROCESS_NS``."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(manifest().output, 1)
        self.clock = clock

    def __call__(
        self, tensors: Tensors, size: int, origins: Sequence[Origin | None] = ()
    ) -> tuple[Outputs, NDArray[np.bool_]]:
        self.clock.advance(POSTPROCESS_NS)
        return super().__call__(tensors, size, origins)


@pytest.mark.parametrize("threads", [0, 1])
def test_each_stages_time_is_its_own_and_summed_over_the_inputs(threads: int) -> None:
    clock = ManualClock()
    predictor = EchoPredictor()
    predictor.during = lambda _: clock.advance(PREDICT_NS)

    def reading(value: int) -> Payload:
        clock.advance(READ_NS)
        if value == 0:
            raise InputError("broken")
        return Url("x") if value == 1 else EncodedImage(b"") if value == 2 else number(value)

    def fetch(_: str) -> bytes:
        clock.advance(FETCH_NS)
        return b""

    with opened(
        predictor,
        threads=threads,
        preprocessor=TimedPreprocessor(clock),
        postprocessor=TimedPostprocessor(clock),
        fetch=fetch,
        clock=clock,
    ) as pipeline:
        mixed = pipeline.predict(inputs(range(6), reading))
        failed = pipeline.predict(inputs([0, 2], reading))
    assert failures(mixed) == [("0", Stage.READ), ("1", Stage.PREPROCESS), ("2", Stage.PREPROCESS)]
    assert mixed.times == StageTimes(6 * READ_NS + FETCH_NS, 5 * PREPROCESS_NS, PREDICT_NS, POSTPROCESS_NS)
    assert failed.times == StageTimes(2 * READ_NS, PREPROCESS_NS, 0, 0)


def test_a_tensors_check_counts_as_preprocessing() -> None:
    clock = ManualClock()
    predictor = EchoPredictor()
    predictor.during = lambda _: clock.advance(PREDICT_NS)

    class Checking(ModelPreprocessor):
        def checked(self, batch: Tensors | NDArray[Any]) -> dict[str, NDArray[Any]]:
            clock.advance(5)
            return super().checked(batch)

    checking = Checking([TimedPreprocessor(clock)])
    with opened(predictor, preprocessor=checking, clock=clock) as pipeline:
        result = pipeline.predict_tensor(np.zeros((2, 1, 1, 1), np.float32))
    assert result.times == StageTimes(0, 5, PREDICT_NS, 0)


def test_the_predict_time_has_no_waiting_for_another_batch() -> None:
    clock = ManualClock()
    predicting, release = threading.Event(), threading.Event()

    def during(batch: int) -> None:
        if batch == 0:
            predicting.set()
            wait_for(release)
        clock.advance(PREDICT_NS)

    predictor = EchoPredictor()
    predictor.during = during
    batch = np.zeros((1, 1, 1, 1), np.float32)
    with opened(predictor, clock=clock) as pipeline, ThreadPoolExecutor(2) as pool:
        first = pool.submit(pipeline.predict_tensor, batch)
        wait_for(predicting)
        second = pool.submit(pipeline.predict_tensor, batch)
        # two readings each before the prediction, and one within the first's
        wait_until(lambda: clock.readings == 5)
        clock.advance(777_777)
        release.set()
        assert second.result(DEADLINE_S).times.predict_ns == PREDICT_NS
        assert first.result(DEADLINE_S).times.predict_ns == 777_777 + PREDICT_NS


def test_the_predict_time_has_no_waiting_for_another_sessions_turn() -> None:
    clock = ManualClock()
    turns = []

    class TakingTurns(EchoPredictor):
        @contextmanager
        def turn(self) -> Iterator[None]:
            clock.advance(777_777)
            yield
            turns.append(len(self.batches))
            clock.advance(777_777)

    predictor = TakingTurns()
    predictor.during = lambda _: clock.advance(PREDICT_NS)
    with opened(predictor, clock=clock) as pipeline:
        result = pipeline.predict_tensor(np.zeros((1, 1, 1, 1), np.float32))
    assert result.times == StageTimes(0, 0, PREDICT_NS, 0)
    assert turns == [1]


def test_the_predict_time_has_no_waiting_at_the_gate() -> None:
    clock = ManualClock()
    preparing, release = threading.Event(), threading.Event()

    class Blocking(TimedPreprocessor):
        def write(self, payload: Payload, out: NDArray[Any]) -> None:
            preparing.set()
            wait_for(release)
            super().write(payload, out)

    predictor = EchoPredictor()
    predictor.during = lambda _: clock.advance(PREDICT_NS)
    with (
        opened(predictor, preprocessor=Blocking(clock), clock=clock) as pipeline,
        ThreadPoolExecutor(2) as pool,
    ):
        held = pool.submit(pipeline.predict, inputs([1]))
        wait_for(preparing)
        before = clock.readings
        waiting = pool.submit(pipeline.predict_tensor, np.zeros((1, 1, 1, 1), np.float32))
        wait_until(lambda: clock.readings == before + 2)
        assert predictor.batches == []
        clock.advance(777_777)
        release.set()
        assert waiting.result(DEADLINE_S).times.predict_ns == PREDICT_NS
        assert held.result(DEADLINE_S).times.predict_ns == PREDICT_NS


def test_no_input_is_preprocessed_while_a_batch_is_predicted() -> None:
    read, preprocessing = threading.Event(), threading.Event()
    predicting, release = threading.Event(), threading.Event()

    class Watched(TimedPreprocessor):
        def write(self, payload: Payload, out: NDArray[Any]) -> None:
            if predicting.is_set():
                preprocessing.set()
            super().write(payload, out)

    def reading(value: int) -> Payload:
        read.set()
        return number(value)

    def during(batch: int) -> None:
        if batch == 0:
            predicting.set()
            wait_for(release)

    predictor = EchoPredictor()
    predictor.during = during
    with (
        opened(predictor, threads=2, preprocessor=Watched(ManualClock())) as pipeline,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(pipeline.predict, inputs([0]))
        wait_for(predicting)
        second = pool.submit(pipeline.predict, inputs([1], reading))
        wait_for(read)  # so that it comes to the gate while the first batch is predicted
        assert not preprocessing.wait(SHORTLY_S)
        release.set()
        assert [answers(result.result(DEADLINE_S)) for result in (first, second)] == [{"0": 0}, {"1": 1}]
    assert preprocessing.is_set()


def test_without_overlap_a_round_is_prepared_before_the_first_of_it_is_predicted() -> None:
    happened: list[str] = []

    class Watched(TimedPreprocessor):
        def write(self, payload: Payload, out: NDArray[Any]) -> None:
            happened.append("preprocess")
            super().write(payload, out)

    predictor = EchoPredictor()
    predictor.during = lambda _: happened.append("predict")
    with opened(predictor, threads=2, preprocessor=Watched(ManualClock())) as pipeline:
        assert len(list(pipeline.predict_batches([inputs([value % 10]) for value in range(260)]))) == 260
    assert happened == ["preprocess"] * 256 + ["predict"] * 256 + ["preprocess"] * 4 + ["predict"] * 4


def test_with_overlap_an_input_is_preprocessed_while_a_batch_is_predicted() -> None:
    preprocessed, predicting = threading.Event(), threading.Event()

    class Watched(TimedPreprocessor):
        def write(self, payload: Payload, out: NDArray[Any]) -> None:
            if predicting.is_set():
                preprocessed.set()
            super().write(payload, out)

    def reading(value: int) -> Payload:
        if value:
            wait_for(predicting)
        return number(value)

    def during(batch: int) -> None:
        if batch == 0:
            predicting.set()
            wait_for(preprocessed)

    predictor = EchoPredictor()
    predictor.during = during
    with opened(predictor, preprocessor=Watched(ManualClock()), overlap=True) as pipeline:
        assert len(list(pipeline.predict_batches([inputs([0], reading), inputs([1], reading)]))) == 2


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_many_callers_at_once_each_get_their_own_answer(overlap: bool, threads: int) -> None:
    lock = threading.Lock()
    running = {"predict": 0, "preprocess": 0}
    wrong: list[str] = []

    @contextmanager
    def within(stage: str, others: Iterable[str]) -> Iterator[None]:
        with lock:
            running[stage] += 1
            wrong.extend(f"{stage} during {other}" for other in others if running[other] > (other == stage))
        yield
        with lock:
            running[stage] -= 1

    class Watched(ImagePreprocessor):
        def write(self, payload: Payload, out: NDArray[Any]) -> None:
            with within("preprocess", () if overlap else ("predict",)):
                super().write(payload, out)

    class WatchedPredictor(EchoPredictor):
        def predict(self, inputs: Tensors) -> Tensors:
            with within("predict", ("predict",) if overlap else ("predict", "preprocess")):
                return super().predict(inputs)

    def caller(seed: int) -> None:
        values = [(seed + step) % 10 for step in range(4)]
        for _ in range(5):
            assert list(answers(pipeline.predict(inputs(values))).values()) == values
            tensor = np.array(values, np.float32).reshape(4, 1, 1, 1)
            assert list(answers(pipeline.predict_tensor(tensor)).values()) == values
            for result in pipeline.predict_batches([inputs(values), inputs(values[:1])]):
                assert list(answers(result).values()) in (values, values[:1])

    watched = Watched(manifest().inputs[0].parameters)
    with (
        opened(WatchedPredictor(), threads=threads, preprocessor=watched, overlap=overlap) as pipeline,
        ThreadPoolExecutor(12) as pool,
    ):
        for done in [pool.submit(caller, seed) for seed in range(12)]:
            done.result(DEADLINE_S)
    assert wrong == []
