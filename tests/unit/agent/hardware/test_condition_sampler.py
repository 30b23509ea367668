"""The thread that looks during a measurement: how often, and what it takes itself."""

from __future__ import annotations

import threading
import time

import pytest

from inferometer.agent.hardware.conditions import MOST_SHARE, ConditionSampler, Sample, look

DEADLINE_S = 30.0


def wait_for(sampler_looks: list[Sample], count: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while len(sampler_looks) < count:
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.005)


def test_it_looks_until_it_is_stopped() -> None:
    seen: list[Sample] = []

    def next_look() -> Sample:
        seen.append(Sample(float(len(seen))))
        return seen[-1]

    sampler = ConditionSampler(next_look, interval_s=0.001)
    sampler.start()
    wait_for(seen, 3)
    samples = sampler.stop()

    assert list(samples.looks) == seen
    assert samples.cpu_s > 0
    assert sampler.stop() == samples


def test_it_looks_less_often_where_a_look_takes_long() -> None:
    seen: list[Sample] = []

    def slow_look() -> Sample:
        end_s = time.thread_time() + 0.05
        while time.thread_time() < end_s:
            pass
        seen.append(Sample(0.0))
        return seen[-1]

    sampler = ConditionSampler(slow_look, interval_s=0.0)
    sampler.start()
    wait_for(seen, 1)
    began_s = time.monotonic()
    threading.Event().wait(0.3)  # the next one is due after 0.05 s / MOST_SHARE = 20 s
    samples = sampler.stop()

    assert time.monotonic() - began_s < 0.05 / MOST_SHARE
    assert len(samples.looks) == 1


def test_it_looks_less_often_while_the_process_hardly_runs() -> None:
    seen: list[Sample] = []

    def short_look() -> Sample:
        end_s = time.thread_time() + 0.001
        while time.thread_time() < end_s:
            pass
        seen.append(Sample(0.0))
        return seen[-1]

    sampler = ConditionSampler(short_look, interval_s=0.2)
    sampler.start()
    threading.Event().wait(1.0)  # 1 ms every 0.4 s would do for a process that takes one processor

    assert len(sampler.stop().looks) == 1


def test_one_that_was_not_started_saw_nothing() -> None:
    assert ConditionSampler().stop().looks == ()


@pytest.mark.real_time
def test_its_own_time_is_below_half_a_percent_of_the_run() -> None:
    sampler = ConditionSampler(look)
    before_s, began_s = time.process_time(), time.monotonic()
    sampler.start()
    while time.monotonic() - began_s < 3.0:
        sum(range(1000))
    samples = sampler.stop()
    run_s = time.process_time() - before_s

    assert len(samples.looks) >= 3
    assert all(each.processors is not None for each in samples.looks)
    assert 0 < samples.cpu_s < 0.005 * run_s
