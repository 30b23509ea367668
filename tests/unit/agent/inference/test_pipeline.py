"""The pipeline: the order of its batches, how far it reads ahead, and where it ends."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from pipeline_fakes import (
    DEADLINE_S,
    SHORTLY_S,
    EchoPredictor,
    answers,
    inputs,
    number,
    opened,
    wait_for,
    wait_until,
)

from inferometer.agent.inference.stages import BATCHES_AHEAD, INPUTS_AHEAD
from inferometer.agent.preprocessing.inputs import Input, Payload, Url
from inferometer.agent.preprocessing.preprocessor import ImagePreprocessor
from inferometer.manifests.errors import InputError, SessionError
from inferometer.manifests.inputs import ImageParameters


def batched(count: int, size: int) -> list[list[Input]]:
    """``count`` batches whose inputs' ids are 0-0, 0-1, …; the number is the second part."""
    return [inputs(range(size), prefix=f"{batch}-") for batch in range(count)]


@pytest.mark.parametrize("threads", [0, 1, 3, 8])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_one_batch_is_answered_input_by_input_in_order(threads: int, size: int) -> None:
    with opened(threads=threads) as pipeline:
        result = pipeline.predict(inputs(range(size)))
    assert answers(result) == {str(value): value for value in range(size)}
    assert result.input_ids == tuple(map(str, range(size)))
    assert result.failures == ()


@pytest.mark.parametrize("threads", [0, 1, 4])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 9])
def test_batches_are_answered_in_order_to_the_last_and_smaller_one(threads: int, count: int) -> None:
    batches = [*batched(count, 5), inputs([7], prefix="last-")]
    with opened(threads=threads) as pipeline:
        results = list(pipeline.predict_batches(batches))
    assert [result.input_ids for result in results] == [tuple(i.id for i in batch) for batch in batches]
    assert [list(answers(result).values()) for result in results] == [[0, 1, 2, 3, 4]] * count + [[7]]


def test_no_batches_are_no_results() -> None:
    with opened() as pipeline:
        assert list(pipeline.predict_batches([])) == []


def test_order_is_kept_when_a_later_input_is_read_first() -> None:
    later = threading.Event()

    def first(_: int) -> Payload:
        wait_for(later)
        return number(1)

    def second(_: int) -> Payload:
        later.set()
        return number(2)

    batches = [[*inputs([1], first), *inputs([3, 4, 5])], inputs([2], second), inputs([6])]
    with opened(threads=4) as pipeline:
        results = list(pipeline.predict_batches(batches))
    assert [list(answers(result).values()) for result in results] == [[1, 3, 4, 5], [2], [6]]


@pytest.mark.parametrize(
    ("threads", "overlap", "size", "begun"),
    [
        (0, False, 200, lambda consumed: consumed),
        (0, True, 200, lambda consumed: consumed),
        (1, False, 200, lambda consumed: math.ceil(consumed / BATCHES_AHEAD) * BATCHES_AHEAD),
        (4, False, 200, lambda consumed: math.ceil(consumed / BATCHES_AHEAD) * BATCHES_AHEAD),
        (4, False, 64, lambda consumed: math.ceil(consumed / 4) * INPUTS_AHEAD // 64),
        (1, True, 200, lambda consumed: consumed + BATCHES_AHEAD),
        (4, True, 200, lambda consumed: consumed + BATCHES_AHEAD),
        (4, True, 64, lambda consumed: consumed + INPUTS_AHEAD // 64),
    ],
)
def test_a_slow_consumer_finds_no_more_than_the_bound_read_ahead(
    threads: int, overlap: bool, size: int, begun: Callable[[int], int]
) -> None:
    lock = threading.Lock()
    count = 10
    taken, read = [], []

    def reading(value: int) -> Payload:
        with lock:
            read.append(value)
        return number(value)

    def source() -> Iterator[Sequence[Input]]:
        for batch in range(count):
            taken.append(batch)
            yield inputs([0] * size, reading)

    with opened(threads=threads, overlap=overlap) as pipeline:
        results = pipeline.predict_batches(source())
        assert (taken, read) == ([], [])
        for consumed, _ in enumerate(results, start=1):
            expected = min(count, begun(consumed))
            assert len(taken) == expected
            wait_until(lambda expected=expected: len(read) >= expected * size)
            assert len(read) == expected * size
    assert consumed == count


def test_large_inputs_bound_what_is_read_ahead_by_their_memory() -> None:
    parameters = ImageParameters(dimensions=(1, 4096, 4096), color_mode="GRAY")  # 64 MiB a tensor
    taken = []

    def source() -> Iterator[Sequence[Input]]:
        for batch in range(6):
            taken.append(batch)
            yield [Input(str(batch), Url("nowhere"))]

    with opened(threads=1, preprocessor=ImagePreprocessor(parameters)) as pipeline:
        next(pipeline.predict_batches(source()))
    assert len(taken) == BATCHES_AHEAD


def test_an_empty_batch_is_refused() -> None:
    with opened() as pipeline:
        with pytest.raises(InputError, match="batch is empty"):
            pipeline.predict([])
        results = pipeline.predict_batches([*batched(1, 2), [], *batched(1, 2)])
        with pytest.raises(InputError, match="batch is empty"):
            list(results)
        assert len(answers(pipeline.predict(inputs([1, 2])))) == 2


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("threads", [0, 3])
def test_closing_the_iterator_takes_no_more_batches(threads: int, overlap: bool) -> None:
    taken = []

    def source() -> Iterator[Sequence[Input]]:
        for batch in range(100):
            taken.append(batch)
            yield inputs([0] * 200)

    with opened(threads=threads, overlap=overlap) as pipeline:
        with closing(pipeline.predict_batches(source())) as results:  # type: ignore[type-var]
            next(results)
            begun = len(taken)
        assert len(taken) == begun <= 1 + BATCHES_AHEAD
        assert list(results) == []
        assert answers(pipeline.predict(inputs([3]))) == {"3": 3}


def test_closing_the_iterator_cancels_what_is_not_begun_and_does_not_wait_for_what_is() -> None:
    read: list[int] = []
    begun, release = threading.Event(), threading.Event()

    def reading(value: int) -> Payload:
        read.append(value)
        if value == 2:
            begun.set()
            wait_for(release)
        return number(value)

    with opened(threads=1, overlap=True) as pipeline:
        results = pipeline.predict_batches([inputs([value], reading) for value in (1, 2, 3, 4)])
        next(results)
        wait_for(begun)
        results.close()  # type: ignore[attr-defined]
        release.set()
        pipeline.predict(inputs([9], reading))  # would come after what was not cancelled
    assert read == [1, 2, 9]


@pytest.mark.parametrize("threads", [0, 2])
def test_a_closed_pipeline_refuses_and_may_be_closed_again(threads: int) -> None:
    predictor = EchoPredictor()
    with opened(predictor, threads=threads) as pipeline:
        pipeline.predict(inputs([1]))
        pipeline.close()
        pipeline.close()
        for call in (
            lambda: pipeline.predict(inputs([1])),
            lambda: pipeline.predict_tensor(np.zeros((1, 1, 1, 1), np.float32)),
            lambda: list(pipeline.predict_batches([inputs([1])])),
        ):
            with pytest.raises(SessionError, match="closed"):
                call()
    assert predictor.batches == [[1]]


def test_closing_waits_for_the_prediction_under_way() -> None:
    predicting, release = threading.Event(), threading.Event()
    closed = threading.Event()

    def during(_: int) -> None:
        predicting.set()
        wait_for(release)

    predictor = EchoPredictor()
    predictor.during = during
    with opened(predictor) as pipeline, ThreadPoolExecutor(2) as pool:
        result = pool.submit(pipeline.predict, inputs([1]))
        wait_for(predicting)
        pool.submit(pipeline.close).add_done_callback(lambda _: closed.set())
        assert not closed.wait(SHORTLY_S)
        release.set()
        wait_for(closed)
        assert answers(result.result(DEADLINE_S)) == {"1": 1}


def test_closing_refuses_those_who_wait_for_their_inputs() -> None:
    reading_first, release = threading.Event(), threading.Event()
    predictor = EchoPredictor()

    def reading(value: int) -> Payload:
        reading_first.set()
        wait_for(release)
        return number(value)

    with opened(predictor, threads=1) as pipeline, ThreadPoolExecutor(3) as pool:
        first = pool.submit(pipeline.predict, inputs([1], reading))
        wait_for(reading_first)
        queued = pool.submit(pipeline.predict, inputs([2], reading))
        closing_it = pool.submit(pipeline.close)
        with pytest.raises(SessionError, match="closed"):
            queued.result(DEADLINE_S)
        release.set()
        with pytest.raises(SessionError, match="closed"):
            first.result(DEADLINE_S)
        closing_it.result(DEADLINE_S)
    assert predictor.batches == []


def test_closing_reads_nothing_more_of_a_batch() -> None:
    reading, release = threading.Event(), threading.Event()
    begun: list[int] = []

    def read(value: int) -> Payload:
        begun.append(value)
        reading.set()
        wait_for(release)
        return number(value)

    with opened(threads=1) as pipeline, ThreadPoolExecutor(3) as pool:
        first = pool.submit(pipeline.predict, inputs(range(8), read))
        wait_for(reading)
        queued = pool.submit(pipeline.predict, inputs([9], read))
        closing_it = pool.submit(pipeline.close)
        with pytest.raises(SessionError, match="closed"):  # the closing has begun
            queued.result(DEADLINE_S)
        release.set()
        closing_it.result(DEADLINE_S)
        with pytest.raises(SessionError, match="closed"):
            first.result(DEADLINE_S)
    assert begun == [0]
