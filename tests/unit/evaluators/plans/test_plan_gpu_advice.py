"""Whether a GPU is worth asking for, by generated cases; no GPU is required."""

from __future__ import annotations

import math

import pytest

from inferometer.evaluators.plans.cells import Cell, Run
from inferometer.evaluators.plans.reporting.advice import Verdict, asks_for_gpu, failed_on_gpu, gpu_advice
from inferometer.evaluators.plans.reporting.cases import Figure
from inferometer.evaluators.plans.running.folder import Ended, Result, RunHistory
from inferometer.manifests.errors import ConfigurationError
from tests.plan_cases import case

RATE, TIME, USE = "throughput_inputs_per_s", "latency_ms_p50", "gpu_utilization_percent"
CPU, GPU = {"using_gpu": False}, {"using_gpu": True}


def _rate(value, part=0.05):
    return (value, value * (1 - part), value * (1 + part))


def _on_cpu(rates, **options):
    return [case({RATE: _rate(rate)}, told=CPU, threads=n, **options) for n, rate in rates.items()]


def _on_gpu(rate, use=90.0, **options):
    return case({RATE: _rate(rate), USE: use}, told=GPU, gpu=True, **options)


FOUR = {1: 100.0, 2: 190.0, 4: 340.0, 8: 500.0}


def test_the_gpu_is_compared_with_the_best_and_with_the_most_efficient_cores():
    [row] = gpu_advice([*_on_cpu(FOUR), _on_gpu(1550.0)]).rows

    assert row["ratio"] == pytest.approx(3.1)  # of 8 cores
    assert row["break_even_cores"] == pytest.approx(15.5)  # one core alone has 100 a second
    reach = math.hypot(math.log(1 / 0.95), math.log(1.05))
    assert row["break_even_cores_low"] == pytest.approx(15.5 * math.exp(-reach))
    assert row["reaching_cores"] == "none measured"
    assert row["rate[threads=4]"] == pytest.approx(340.0)
    assert row["rate[gpu]_high"] == pytest.approx(1550 * 1.05)
    assert row["advice"] == (
        "GPU: 3.1 [2.89, 3.33] times the rate of 8 cores; worth asking for where a GPU counts as fewer than "
        "15.5 [14.4, 16.6] cores"
    )


def test_the_least_number_of_cores_that_reaches_the_gpu_is_told():
    [row] = gpu_advice([*_on_cpu(FOUR), _on_gpu(200.0)]).rows
    assert row["reaching_cores"] == 4
    assert row["ratio"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("cores", "verdict"), [(6.0, Verdict.WORTH), (15.0, Verdict.UNDECIDED), (24.0, Verdict.NOT_WORTH)]
)
def test_the_price_of_a_gpu_makes_it_a_verdict(cores, verdict):
    [row] = gpu_advice([*_on_cpu(FOUR), _on_gpu(1550.0)], cores_per_gpu=cores).rows
    assert row["verdict"] == verdict.value
    assert f" at {cores:g} cores a GPU" in row["advice"]
    assert ("not worth" in row["advice"]) == (verdict is Verdict.NOT_WORTH)


def test_without_an_interval_nothing_is_decided():
    assert Verdict.of(Figure(100.0), 1.0) is Verdict.UNDECIDED


@pytest.mark.parametrize(("use", "said"), [(49.0, True), (51.0, False), (None, False)])
def test_a_gpu_that_is_little_used_is_told(use, said):
    gpu = _on_gpu(1550.0, use=49.0 if use is None else use)
    if use is None:
        gpu = case({RATE: 1550.0}, told=GPU, gpu=True)
    [row] = gpu_advice([*_on_cpu(FOUR), gpu]).rows
    assert row[USE] == use
    assert ("at work 49 % of the run" in row["advice"]) is said


def test_a_time_is_one_over_its_rate():
    cases = [case({TIME: (ms, ms, ms)}, told=CPU, threads=n) for n, ms in ((1, 8.0), (2, 4.0))]
    [row] = gpu_advice([*cases, case({TIME: (1.0, 1.0, 1.0)}, told=GPU, gpu=True)]).rows
    assert (row["ratio"], row["break_even_cores"]) == (4.0, 8.0)
    assert (row["ratio_low"], row["ratio_high"]) == (4.0, 4.0)


def test_each_batch_has_its_own_advice_and_cells_without_a_pair_are_counted():
    cases = [
        *_on_cpu(FOUR, batch_size=1),
        *_on_cpu(FOUR, batch_size=64),
        *_on_cpu({1: 10.0}, batch_size=128),
        _on_gpu(50.0, batch_size=1),
        _on_gpu(5000.0, batch_size=64),
    ]
    found = gpu_advice(cases)
    assert [(row["batch_size"], row["reaching_cores"]) for row in found.rows] == [
        (1, 1),
        (64, "none measured"),
    ]
    assert found.notes[0] == "Left out: 1 cell without an equal on the other device."
    assert [chart.rules[0].at for chart in found.drawing.charts] == [50.0, 5000.0]


def test_where_the_gpu_cells_vary_in_threads_the_fastest_counts():
    cases = [*_on_cpu(FOUR), *(_on_gpu(rate, threads=n) for n, rate in ((1, 900.0), (2, 1000.0), (4, 950.0)))]
    [row] = gpu_advice(cases).rows
    assert row["rate[gpu]"] == 1000.0


def test_software_may_differ_and_several_gpus_do_not_count():
    cases = [
        *_on_cpu(FOUR, cell__software="cpu"),
        _on_gpu(1000.0, cell__software="cuda"),
        case({RATE: 2000.0}, told=GPU, num_gpus=2),
    ]
    found = gpu_advice(cases)
    assert [row["rate[gpu]"] for row in found.rows] == [1000.0]
    assert found.notes[0] == "Left out: 1 cell on several GPUs."


def test_cores_that_cells_are_pinned_to_count():
    cases = [
        case({RATE: 100.0 * n}, told={**CPU, "threads": 4}, cell__cores=cores)
        for cores, n in (("0", 1), ("0-1,3", 2))
    ]
    [row] = gpu_advice([*cases, case({RATE: 400.0}, told=GPU, gpu=True)]).rows
    assert row["rate[cell.cores=3]"] == 200.0
    assert row["break_even_cores"] == pytest.approx(4.0)


TWO_BUILDS = [each for name in "ab" for each in _on_cpu(FOUR, cell__software=name)]
FAILED = (Result("abc-1", Ended.FAILED, "no GPU is available"),)


@pytest.mark.parametrize(
    ("cases", "failed", "message"),
    [
        (_on_cpu(FOUR), (), "but there is none on a GPU; add one to the plan, or run it"),
        (_on_cpu(FOUR), FAILED, "1 run on a GPU is not complete, such as abc-1: no GPU is available"),
        ([_on_gpu(9.0)], (), "cells on the CPU besides those on a GPU, but there is none"),
        ([*_on_cpu({4: 9.0}), _on_gpu(9.0)], (), "with several numbers of threads or cores"),
        ([*_on_cpu(FOUR, batch_size=1), _on_gpu(9.0, batch_size=2)], (), "differ in batch_size"),
        ([*TWO_BUILDS, _on_gpu(9.0)], (), "they differ in cell.software"),
        ([*_on_cpu(FOUR), case({RATE: 9.0}, told=GPU, num_gpus=2)], (), "none on one GPU alone"),
    ],
)
def test_what_cannot_be_compared_is_one_line(cases, failed, message):
    with pytest.raises(ConfigurationError, match=message):
        gpu_advice(cases, failed=failed)


def test_gpu_cells_that_failed_are_told_beside_those_that_did_not():
    found = gpu_advice([*_on_cpu(FOUR), _on_gpu(9.0)], failed=FAILED)
    assert "1 run on a GPU is not complete, such as abc-1: no GPU is available." in found.notes


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ({"gpu": True}, True),
        ({"gpu": "true"}, True),
        ({"gpu": False}, False),
        ({"device": "gpu"}, True),
        ({"device": "cpu"}, False),
        ({"gpus": 0}, True),  # the first GPU
        ({"gpus": ""}, False),
        ({"num_gpus": 0}, False),
        ({"num_gpus": 2}, True),
        ({"threads": 2}, False),
    ],
)
def test_a_cell_asks_for_a_gpu_by_its_options(options, asks):
    assert asks_for_gpu(Cell("a", ("predict", "dataset"), options, options)) is asks


def test_runs_on_a_gpu_that_failed_are_found():
    gpu, cpu = (Cell(name, ("predict", "dataset"), {"gpu": name == "a"}, {}) for name in "ab")
    runs = [Run(gpu, 1), Run(gpu, 2), Run(gpu, 3), Run(cpu, 1)]
    ends = (Ended.FAILED, Ended.COMPLETE, None, Ended.FAILED)
    history = {
        run.key: RunHistory(result=Result(run.key, ended, "no GPU") if ended else None)
        for run, ended in zip(runs, ends, strict=True)
    }
    assert failed_on_gpu(runs, history) == (Result("a-1", Ended.FAILED, "no GPU"),)
