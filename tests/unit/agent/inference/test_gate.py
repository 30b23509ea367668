"""The gate: inputs are prepared or a batch is predicted, but never both."""

from __future__ import annotations

import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pipeline_fakes import DEADLINE_S, wait_for, wait_until

from inferometer.agent.inference import stages
from inferometer.agent.inference.stages import Gate


def at_the_gate() -> set[int]:
    """The threads that wait at a gate."""
    waiting = set()
    for ident, frame in sys._current_frames().items():
        caller = frame.f_back
        if frame.f_code.co_name == "wait" and caller and caller.f_code.co_filename == stages.__file__:
            waiting.add(ident)
    return waiting


def test_several_inputs_are_prepared_at_once() -> None:
    gate = Gate(overlap=False)
    together = threading.Barrier(4)

    def prepare() -> None:
        with gate.prepare():
            together.wait(DEADLINE_S)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(prepare) for _ in range(4)]:
            done.result(DEADLINE_S)


def test_nothing_is_prepared_while_a_batch_is_predicted() -> None:
    gate = Gate(overlap=False)
    entered = threading.Event()

    def prepare() -> None:
        with gate.prepare():
            entered.set()

    with ThreadPoolExecutor(1) as pool:
        with gate.predict():
            preparing = pool.submit(prepare)
            wait_until(at_the_gate)
            assert not entered.is_set()
        preparing.result(DEADLINE_S)
    assert entered.is_set()


def test_a_prediction_waits_for_what_is_under_way_and_lets_nothing_new_begin() -> None:
    gate = Gate(overlap=False)
    order: list[str] = []

    def predict() -> None:
        with gate.predict():
            order.append("predict")

    def prepare() -> None:
        with gate.prepare():
            order.append("second")

    with ThreadPoolExecutor(2) as pool:
        with gate.prepare():
            predicting = pool.submit(predict)
            wait_until(lambda: len(at_the_gate()) == 1)
            preparing = pool.submit(prepare)
            wait_until(lambda: len(at_the_gate()) == 2)
            order.append("first")
        predicting.result(DEADLINE_S)
        preparing.result(DEADLINE_S)
    assert order == ["first", "predict", "second"]


def test_who_waited_to_prepare_goes_before_the_next_prediction() -> None:
    gate = Gate(overlap=False)
    order: list[str] = []

    def prepare() -> None:
        with gate.prepare():
            order.append("prepare")

    with ThreadPoolExecutor(2) as pool:
        with gate.predict():
            preparing = [pool.submit(prepare) for _ in range(2)]
            wait_until(lambda: len(at_the_gate()) == 2)
        with gate.predict():
            order.append("predict")
        for done in preparing:
            done.result(DEADLINE_S)
    assert order == ["prepare", "prepare", "predict"]


def test_with_overlap_both_go_on_at_once() -> None:
    gate = Gate(overlap=True)
    together = threading.Barrier(2)

    def prepare() -> None:
        with gate.prepare():
            together.wait(DEADLINE_S)

    with ThreadPoolExecutor(1) as pool:
        preparing = pool.submit(prepare)
        with gate.predict():
            together.wait(DEADLINE_S)
        preparing.result(DEADLINE_S)


@pytest.mark.parametrize("overlap", [True, False])
def test_an_error_on_either_side_leaves_the_gate_open(overlap: bool) -> None:
    gate = Gate(overlap)
    with pytest.raises(KeyError), gate.prepare():
        raise KeyError
    with pytest.raises(KeyError), gate.predict():
        raise KeyError
    with gate.prepare():
        pass
    with gate.predict():
        pass


def test_an_interrupt_of_a_waiting_prediction_leaves_the_gate_open() -> None:
    gate = Gate(overlap=False)
    inside, leave = threading.Event(), threading.Event()
    main = threading.main_thread().ident or 0

    def prepare() -> None:
        with gate.prepare():
            inside.set()
            wait_for(leave)

    def interrupt() -> None:
        wait_until(lambda: main in at_the_gate())
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ThreadPoolExecutor(2) as pool:
            preparing = pool.submit(prepare)
            wait_for(inside)
            interrupting = pool.submit(interrupt)
            with pytest.raises(KeyboardInterrupt), gate.predict():
                pytest.fail("the gate let a prediction in")
            leave.set()
            interrupting.result(DEADLINE_S)
            preparing.result(DEADLINE_S)
            pool.submit(prepare).result(DEADLINE_S)  # would wait for ever behind a gate that stayed closed
    finally:
        leave.set()
        signal.signal(signal.SIGINT, before)


def test_a_prediction_that_takes_too_long_keeps_nobody_from_preparing() -> None:
    now_s = [0.0]
    gate = Gate(overlap=False, timeout_s=1.0, clock=lambda: now_s[0])
    entered = threading.Event()

    def prepare() -> None:
        with gate.prepare():
            entered.set()

    with ThreadPoolExecutor(1) as pool, gate.predict():
        now_s[0] = 1.0
        pool.submit(prepare).result(DEADLINE_S)
        assert entered.is_set()
    with ThreadPoolExecutor(1) as pool, gate.predict():
        entered.clear()
        preparing = pool.submit(prepare)
        wait_until(at_the_gate)
        assert not entered.is_set()
        now_s[0] = 2.0  # its wait of a second, on the real clock, ends
        preparing.result(DEADLINE_S)
    with ThreadPoolExecutor(2) as pool:  # nothing is left counted
        with gate.predict():
            pass
        pool.submit(prepare).result(DEADLINE_S)
