"""The configuration with the highest rate per watt, on simulated hosts, whose power and best are known."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.agent.hardware.conditions import EnergyMeter
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.job import SystemRequest
from inferometer.evaluators.kinds.registry import find_kind
from inferometer.evaluators.kinds.tuning.figures import Figure, Trial, TuningMeasurement, probability_better
from inferometer.evaluators.kinds.tuning.kind import TuningJob, TuningKind, TuningReport
from inferometer.evaluators.kinds.tuning.race import Race, Replay
from inferometer.evaluators.kinds.tuning.request import Configuration, TuningRequest
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.queries import LoadRun, Stop
from inferometer.manifests.errors import ConfigurationError, SessionError
from tests import tuned_hosts
from tests.contract.store_fixtures import make_evaluation
from tests.tuned_hosts import NS_PER_S, Host, SimulatedProber, highest_qps, request_of

PER_WATT: Any = {"objective": "rate_per_watt"}
HOST = Host(cores=4, fixed_s=0.004, query_s=0.001, parallel=0.6, idle_watts=8.0, core_watts=10.0)
SPACE = [
    Configuration(count, threads, size, 0.0) for count in (1, 2) for threads in (1, 2) for size in (4, 16)
]
"""With 2 instances of 2 threads, the rate is the highest, but a thread less costs more power than rate."""


class Metered(SimulatedProber):
    """The noise of a run and the error of its power, 1 %, depend only on its number."""

    def run(self, *arguments: Any) -> LoadRun:
        self._random = np.random.RandomState(len(self.runs))
        run = super().run(*arguments)
        self.watts *= 1 + 0.01 * float(self._random.standard_normal())
        return run


def tuned(prober: Any, stored: TuningMeasurement | None = None, **options: Any) -> TuningMeasurement:
    """The tuning by a prober, which continues the stored one."""
    request = request_of(0, 60.0, **{**PER_WATT, **options})
    load = request.load.load_options()
    replay = Replay(
        prober, prober.use, lambda: 0, stored or TuningMeasurement(load, (), 0), lambda: prober.watts
    )
    race = Race(request, map(Trial, SPACE), replay, math.inf)
    answer = race.answer() if race.run() else None
    told: Any = {"ended_s": race.ended_s, "watts": race.watts, "metered": "whole GPU, all processes"}
    return TuningMeasurement(load, tuple(prober.runs), 0, answer, race.trials(), request.asked, **told)


@cache
def per_watt(c: Configuration) -> tuple[float, float]:
    """The true rate, and the power at this rate."""
    rate_qps = highest_qps(HOST, c, 60.0, 20_000)
    prober = SimulatedProber(HOST, 7)
    prober.use(c)
    due_s = np.random.RandomState(5).standard_exponential(20_000).cumsum() / rate_qps
    prober.run(Schedule(np.rint(due_s * NS_PER_S).astype(np.int64), "units", rate_qps))
    return rate_qps, prober.watts


def test_the_best_per_watt_is_found_with_its_power_and_interval() -> None:
    true = {each: qps / watts for each in SPACE for qps, watts in [per_watt(each)]}
    expected = max(true, key=true.__getitem__)
    assert expected != max(SPACE, key=lambda each: per_watt(each)[0])  # which has the highest rate

    measured = tuned(Metered(HOST))

    best = measured.best
    assert best is not None
    assert best.configuration == expected
    assert best.watts == pytest.approx(per_watt(expected)[1], rel=0.02)
    assert best.low < per_watt(expected)[0] < best.high  # type: ignore[operator]
    low, high = best.queries_per_joule_low, best.queries_per_joule_high
    assert low is not None
    assert high is not None
    assert low < true[expected] < high
    assert high / low < 1.1
    assert measured.another is not None
    assert measured.another < 0.5
    others = {each.configuration: each for each in measured.trials[1:]}
    assert all(each.queries_per_joule_low is None for each in others.values())


@pytest.mark.parametrize("seed", [0, 1, 9])
def test_the_best_per_watt_of_a_drawn_host_is_found_within_3_percent(seed: int) -> None:
    host = replace(Host.drawn(seed), idle_watts=[5.0, 20.0, 60.0][seed % 3])
    request = request_of(seed, host.bound_ms(seed), **PER_WATT)
    space = list(request.configurations(host.cores, on_gpu=False))
    prober = Metered(host)
    race = tuned_hosts.race_of(request, space, prober)

    assert race.run()

    def exact(c: Configuration) -> float:
        rate_qps, probe = highest_qps(host, c, request.latency_bound_ms, 10_000), SimulatedProber(host)
        probe.use(c)
        due_s = np.random.RandomState(5).standard_exponential(10_000).cumsum() / rate_qps
        probe.run(Schedule(np.rint(due_s * NS_PER_S).astype(np.int64), "units", rate_qps))
        return rate_qps / probe.watts

    assert exact(race.trials()[0].configuration) >= 0.97 * max(map(exact, space))
    assert prober.elapsed_s < 30 * 1.5 * len(space) * 0.2 + 60


@cache
def whole() -> TuningMeasurement:
    return tuned(Metered(HOST))


@pytest.mark.parametrize("count", [0, 5, 27, 45])
def test_a_resumed_one_goes_on_with_the_stored_power(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned_hosts, "OPENING_S", 0.0)  # a resumed one opens the model once more
    expected = whole()
    before = tuned(Metered(HOST, interrupted_after=count))
    assert before.probes[-1].stop is Stop.INTERRUPTED
    kind = find_kind("tuning")
    document, parts = kind.to_documents(make_evaluation(measurement=before), "save")
    documents = {name: list(part.documents) for name, part in parts.items()}
    stored = kind.from_documents({"measurement": document, "elapsed_ns": 0}, documents)

    found = tuned(Metered(HOST), stored)

    assert (found.answer, found.trials) == (expected.answer, expected.trials)
    assert list(found.watts) == list(expected.watts)


def test_the_power_of_each_sequence_and_of_both_ends_of_a_bracket_make_the_figure_less_certain() -> None:
    blocks = np.linspace(-0.01, 0.01, 8)
    figure = Figure(0.0, blocks, costs=np.full(8, 50.0))
    with_rate = replace(figure, costs=50.0 * (1 + 8 * blocks))  # more power where the rate is higher
    against = replace(figure, costs=50.0 * (1 - 8 * blocks))

    assert np.allclose(figure.influences, blocks)
    assert np.allclose(with_rate.influences, 0.0)
    assert np.allclose(against.influences, 2 * blocks)
    better, exact = (Figure(log, np.zeros(20), 0.01) for log in (0.02, 0.0))
    assert probability_better(exact, better) < probability_better(replace(exact, cost_step=0.1), better) < 0.5


def test_the_rate_per_watt_is_told_with_what_it_includes() -> None:
    measured = whole()
    evaluation: Evaluation[TuningMeasurement] = make_evaluation(measurement=measured)
    assert measured.answer is not None
    answer = replace(measured.answer, rate_qps=1000.0, low_qps=900.0, high_qps=1100.0)
    ends: Any = {"queries_per_joule_low": 18.0, "queries_per_joule_high": 22.0}
    best = replace(measured.trials[0], rate_qps=1000.0, watts=50.0, **ends)
    shown: Any = replace(measured, answer=answer, trials=(best,))

    told = dict(TuningKind().summary(make_evaluation(measurement=shown)))
    rough = dict(TuningKind().summary(make_evaluation(measurement=replace(shown, answer=None))))

    assert told["answer"] == "1000 [900, 1100] queries/s at p99 <= 60 ms"
    assert told["per watt"] == "20.0 [18.0, 22.0] queries/J, at 50 W (whole GPU, all processes)"
    assert rough["per watt"] == "about 20 queries/J, at 50 W (whole GPU, all processes)"
    for row, trial in zip(TuningReport().rows([evaluation]), measured.trials, strict=True):
        assert row["watts"] == trial.watts
        assert row["queries_per_joule"] == (trial.rate_qps and trial.rate_qps / trial.watts)  # type: ignore[operator]
        assert (row["metered"], row["rate_per_core_qps"]) == ("whole GPU, all processes", None)


def test_a_counter_that_can_no_longer_be_read_is_an_error() -> None:
    class Broken(Metered):
        def run(self, *arguments: Any) -> LoadRun:
            run = super().run(*arguments)
            self.watts *= len(self.runs) < 40
            return run

    with pytest.raises(SessionError, match="a counter of energy was reset or is not read"):
        tuned(Broken(HOST))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate_qps": 9.0}, "objective rate_per_watt is for the highest rate: leave out rate"),
        ({"system": SystemRequest(agents=("host:1",))}, "reads the power of this machine: leave out agent"),
        ({"min_duration_s": 0.5}, "needs a min_duration of at least 1 s for exact power"),
    ],
    ids=str,
)
def test_where_the_power_would_not_be_that_of_the_model_it_is_refused(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TuningRequest(**PER_WATT, **given)


def test_without_a_counter_it_is_refused_before_the_model_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = partial(EnergyMeter, sys=Path("nowhere"))
    monkeypatch.setattr("inferometer.evaluators.kinds.tuning.kind.EnergyMeter", meter)

    with pytest.raises(
        ConfigurationError, match="objective rate_per_watt needs a counter of energy: of an NV"
    ):
        next(TuningJob(request_of(0, 60.0, **PER_WATT)).run(None))  # type: ignore[arg-type]


def test_a_sequence_that_is_stopped_too_early_for_a_step_of_the_counter_is_no_error() -> None:
    class Coarse(Metered):
        def run(self, *arguments: Any) -> LoadRun:
            run = super().run(*arguments)
            self.watts *= not run.stopped
            return run

    prober = Coarse(HOST)
    measured = tuned(prober)

    assert any(run.stopped for run in prober.runs)
    assert measured.best is not None
    assert measured.best.queries_per_joule_low is not None
