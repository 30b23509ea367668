"""The configuration with the highest rate per core, on simulated hosts, whose best configuration is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from inferometer.agent.hardware.environment import Device, DeviceKind
from inferometer.agent.inference.session import SessionOptions
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.job import SystemRequest
from inferometer.evaluators.kinds.tuning.figures import TuningMeasurement
from inferometer.evaluators.kinds.tuning.kind import TuningKind, TuningReport
from inferometer.evaluators.kinds.tuning.request import Configuration, TuningRequest
from inferometer.manifests.errors import ConfigurationError
from tests.contract.store_fixtures import make_evaluation
from tests.tuned_hosts import Host, SimulatedProber, highest_qps, race_of, request_of

SERIAL = Host(cores=4, fixed_s=0.004, query_s=0.001)
PER_CORE: Any = {"objective": "rate_per_core"}


def tuned(
    space: list[Configuration], limit_qps: float = math.inf, bound_ms: float = 60.0, **options: Any
) -> tuple[TuningMeasurement, SimulatedProber]:
    request, prober = request_of(0, bound_ms, **options), SimulatedProber(SERIAL)
    race = race_of(request, space, prober, limit_qps)
    assert race.run()
    told = (race.answer(), race.trials(), request.asked, limit_qps)
    return TuningMeasurement(request.load.load_options(), tuple(prober.runs), 0, *told), prober


@pytest.mark.parametrize("seed", [0, 4, 7, 8])
def test_the_best_per_core_is_found_within_3_percent(seed: int) -> None:
    """Per core, threads and instances cost what they take: the best has 2, 1, 4 and 2 cores."""
    host = Host.drawn(seed)
    request = request_of(seed, host.bound_ms(seed), **PER_CORE)
    space = list(request.configurations(host.cores, on_gpu=False))
    race = race_of(request, space, SimulatedProber(host, seed))

    assert race.run()

    def per_core(c: Configuration, queries: int, near_qps: float | None = None) -> float:
        cores = c.instances * (c.threads or 1)
        near_qps = near_qps and near_qps * cores
        return highest_qps(host, c, request.latency_bound_ms, queries, near_qps) / cores

    rough = {each: per_core(each, 2_000) for each in space}
    near = [each for each in space if rough[each] > 0.9 * max(rough.values())]
    exact = {each: per_core(each, 20_000, rough[each]) for each in near}
    best, answer = race.trials()[0], race.answer()
    assert exact[best.configuration] >= 0.97 * max(exact.values())
    assert answer is not None
    assert answer.rate_qps is not None
    assert answer.rate_qps / best.cores == pytest.approx(exact[best.configuration], rel=0.06)


def test_where_all_have_the_same_cores_it_is_the_same_race() -> None:
    """The logarithm of the rate is moved by a constant, which changes no difference."""
    space = [Configuration(2, 1, size, 0.0) for size in (1, 4, 16)]
    rates, per_core = tuned(space), tuned(space, **PER_CORE)

    assert [run.checksum for run in per_core[1].runs] == [run.checksum for run in rates[1].runs]
    for one, other in zip(per_core[0].trials, rates[0].trials, strict=True):
        assert one.configuration == other.configuration
        for name in ("rate_qps", "low", "high", "better"):
            assert (getattr(one, name) or 0) == pytest.approx(getattr(other, name) or 0, rel=1e-9), name


def test_a_rate_beyond_what_can_be_sent_may_be_better_per_core() -> None:
    space = [Configuration(count, 1, 16, 0.0) for count in (1, 2)]

    measured, _ = tuned(space, 600.0, 20.0, **PER_CORE)

    best, capped = measured.trials
    assert best.configuration.instances == 1
    assert best.rate_qps is not None
    assert capped.rate_qps == pytest.approx(600.0)
    assert best.rate_qps > 600.0 / 2
    assert capped.better is None
    assert measured.another is None
    told = dict(TuningKind().summary(make_evaluation(measurement=measured)))
    assert told["another"].endswith("unknown: in the race, a rate was only a lower bound")


def test_the_rate_per_core_is_told_with_its_interval() -> None:
    space = [Configuration(count, 1, 16, 0.0) for count in (1, 2)]
    measured, _ = tuned(space, **PER_CORE)
    evaluation: Evaluation[TuningMeasurement] = make_evaluation(measurement=measured)
    assert measured.answer is not None
    answer = replace(measured.answer, rate_qps=1000.0, low_qps=900.0, high_qps=1100.0)
    best = replace(measured.trials[0], configuration=Configuration(2, 2, 16, 0.0), rate_qps=1000.0)
    shown: Any = replace(measured, answer=answer, trials=(best,))

    rows = list(TuningReport().rows([evaluation]))
    told = dict(TuningKind().summary(make_evaluation(measurement=shown)))
    rough = dict(TuningKind().summary(make_evaluation(measurement=replace(shown, answer=None))))

    assert told["answer"] == "1000 [900, 1100] queries/s at p99 <= 60 ms"
    assert told["per core"] == "250 [225, 275] queries/s"
    assert rough["per core"] == "about 250 queries/s"
    for row, trial in zip(rows, measured.trials, strict=True):
        expected = trial.rate_qps and trial.rate_qps / trial.configuration.instances
        assert row["rate_per_core_qps"] == expected
    plain, _ = tuned(space)
    [row, _] = TuningReport().rows([make_evaluation(measurement=plain)])
    assert row["rate_per_core_qps"] is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"objective": "watts"}, 'unknown objective "watts"; known: rate, rate_per_core, rate_per_watt'),
        ({**PER_CORE, "rate_qps": 9.0}, "objective rate_per_core is for the highest rate: leave out rate"),
        (
            {**PER_CORE, "system": SystemRequest(session=SessionOptions(device=Device(DeviceKind.GPU, 0)))},
            "objective rate_per_core is for the cores of a CPU",
        ),
    ],
)
def test_a_wrong_objective_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TuningRequest(**given)


def test_without_the_threads_there_is_no_rate_per_core() -> None:
    request = TuningRequest(system=SystemRequest(agents=("kserve://host:1",)), **PER_CORE)

    with pytest.raises(ConfigurationError, match="needs the threads of the instances; give threads"):
        list(request.configurations(0, on_gpu=False))
    assert list(replace(request, threads=(1,)).configurations(0, on_gpu=False))
