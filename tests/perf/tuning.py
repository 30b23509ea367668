"""``agent tune`` beside a search for the highest rate of every configuration, on hosts of known times.

The hosts are simulated in virtual time, so that the best configuration is known. The true rate of what is
found is the mean over three times 250,000 queries: late queries come in bursts, and one sequence may lack
them. The times are those that the probes would take; of the configurations that a search would have to try,
every sixteenth is searched.
"""

from __future__ import annotations

import math
from dataclasses import replace

from inferometer.evaluators.kinds.load.search import search_max_qps
from inferometer.evaluators.kinds.tuning.figures import TuningMeasurement
from inferometer.evaluators.kinds.tuning.request import Configuration, TuningRequest
from tests.perf.ratios import Row
from tests.tuned_hosts import Host, SimulatedProber, highest_qps, race_of, request_of

CASES = 20
_SEARCH_S = 120.0
_ROUGH, _CLOSE, _EXACT, _EVERY = 2_000, 50_000, 250_000, 16
_NEARLY = 0.93


def measure() -> list[Row]:
    """Tunes the hosts, and searches every configuration of each like ``max-qps`` by default."""
    rates, times, answers, held, another = [], [], [], 0, []
    for seed in range(CASES):
        host = Host.drawn(seed)
        request = request_of(seed, host.bound_ms(seed))
        space = list(request.configurations(host.cores, on_gpu=False))
        prober = SimulatedProber(host, seed)
        race = race_of(request, space, prober)
        race.run()
        answer, best = race.answer(), race.best
        assert best is not None
        assert answer is not None
        assert answer.rate_qps is not None
        found_qps, share = _true_qps(host, space, request.latency_bound_ms, best.configuration)
        rates.append(share)
        answers.append(answer.rate_qps / found_qps)
        held += (answer.low_qps or 0.0) <= found_qps <= (answer.high_qps or math.inf)
        measured = TuningMeasurement(request.load.load_options(), (), 0, answer, race.trials())
        another.append(measured.another or 0.0)
        searched = [_searched_s(host, each, request, seed) for each in space[::_EVERY]]
        times.append(prober.elapsed_s / (sum(searched) / len(searched) * len(space)))
    close, worse = sum(rate >= 0.97 for rate in rates), sum(rate < 1 for rate in rates)
    return [
        Row(
            "rate of the configuration found / of the best", rates, "≥ 0.97", f"{close} of {CASES} within 3 %"
        ),
        Row(
            "time of tuning / of searching every configuration", times, "≤ 0.20", f"at most {max(times):.3f}"
        ),
        Row("answer / true rate", answers, "", f"{held} of {CASES} intervals hold it"),
        Row("P(another is better)", another, "", f"another was better in {worse} of {CASES}"),
    ]


def _true_qps(
    host: Host, space: list[Configuration], bound_ms: float, found: Configuration
) -> tuple[float, float]:
    """The true rate of a configuration, and its share of that of the best on the same arrivals."""
    rough = {each: highest_qps(host, each, bound_ms, _ROUGH) for each in space}
    near = [each for each in space if rough[each] > _NEARLY * max(rough.values()) or each == found]
    close = {each: highest_qps(host, each, bound_ms, _CLOSE, rough[each]) for each in near}
    exact = [highest_qps(host, found, bound_ms, _EXACT, close[found], seed) for seed in (5, 11, 12)]
    return sum(exact) / len(exact), close[found] / max(close.values())


def _searched_s(host: Host, each: Configuration, request: TuningRequest, seed: int) -> float:
    """How long a search of one configuration takes."""
    prober = SimulatedProber(host, seed)
    prober.use(each)
    search = replace(request.load, time_budget_s=_SEARCH_S, min_duration_s=None, min_queries=None)
    search_max_qps(search, prober)  # type: ignore[arg-type] # which has what a search needs
    return prober.elapsed_s
