"""The search for the largest factor of a mix, on simulated hosts whose true factors are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_mix import Service, SharedServer, load, true_factor

from inferometer.evaluators.kinds.load.measurement import Method, RateAnswer
from inferometer.evaluators.kinds.load.request import MaxQpsRequest
from inferometer.evaluators.kinds.load.search import search_factor, search_max_qps
from inferometer.evaluators.load.queries import Outcome, Stop
from inferometer.manifests.errors import EvaluationInterrupted

Found = tuple[RateAnswer, Mapping[str, RateAnswer], str]
FAST, SLOW = (0.005, True), (0.01, True)
# one model limits; two equal ones; two that hardly differ
DISTINCT = {"a": load(40, 100), "b": load(10, 400)}
EQUAL = {"a": load(30, 100), "b": load(30, 100)}
CLOSE = {"a": load(40, 100, 99), "b": load(20, 120, 99)}


def searched(
    models: Mapping[str, MaxQpsRequest], services: Sequence[Service], seed: int = 0, **more: Any
) -> tuple[Found, SharedServer]:
    host = SharedServer(services, 1000 + seed, **more)
    seeded = {name: replace(each, seed=seed) for name, each in models.items()}
    return search_factor(seeded, host), host


@pytest.mark.parametrize(
    ("models", "services", "shared"),
    [
        (DISTINCT, (FAST, SLOW), True),
        (EQUAL, ((0.006, True),) * 2, True),
        (CLOSE, ((0.005, False), SLOW), True),
        ({"a": load(30, 100), "b": load(30, 100), "c": load(30, 100)}, (SLOW,) * 3, False),
    ],
    ids=["one limits", "equal", "close", "apart"],
)
def test_over_40_seeds_the_factor_is_right_and_its_interval_true(
    models: Mapping[str, MaxQpsRequest], services: Sequence[Service], shared: bool
) -> None:
    own = true_factor(models, services, shared=shared)
    truth = min(own.values())

    found = [searched(models, services, seed, shared=shared)[0][0] for seed in range(40)]

    answers = [each for each in found if each.method == Method.LATE_FRACTION.value]
    assert len(answers) >= 34  # the others are brackets
    errors = np.array([(each.rate_qps or 0.0) / truth - 1 for each in answers])
    assert abs(np.median(errors)) <= 0.02
    assert np.abs(errors).max() <= 0.15
    held = [(each.low_qps or 0.0) <= truth <= (each.high_qps or 0.0) for each in answers]
    assert sum(held) >= 0.9 * len(answers)
    halves = [((each.high_qps or 0.0) - (each.low_qps or 0.0)) / 2 / truth for each in answers]
    assert np.median(halves) <= 0.15  # wide where an answer would rest on one burst of late queries


def test_the_model_that_limits_is_named_and_the_other_has_no_upper_end() -> None:
    (answer, own, limited_by), host = searched(DISTINCT, (FAST, SLOW))

    assert limited_by == "a"
    assert own["a"].method == Method.LATE_FRACTION.value
    assert own["a"].rate_qps == answer.rate_qps
    assert (own["b"].method, own["b"].high_qps) == (Method.AT_LEAST.value, None)
    assert "queries were late at" in own["b"].note
    assert answer.low_qps == min(each.low_qps or 0.0 for each in own.values())
    assert host.elapsed_s <= DISTINCT["a"].time_budget_s
    assert host.reconnected == sum(run.rate_qps > 0 for run, _ in host.probes[-host.reconnected :])


def test_two_searches_with_the_same_seed_are_equal_and_send_the_same_arrivals() -> None:
    one, first = searched(CLOSE, ((0.005, False), SLOW), 3)
    again, second = searched(CLOSE, ((0.005, False), SLOW), 3)
    other, third = searched(CLOSE, ((0.005, False), SLOW), 4)

    checksums = [[run.checksum for probe in host.probes for run in probe] for host in (first, second, third)]
    assert one == again
    assert checksums[0] == checksums[1]
    assert len(set(checksums[0])) == len(checksums[0])  # each probe has arrivals of its own
    assert not set(checksums[0]) & set(checksums[2])
    assert (one[0].low_qps or 0) < (other[0].high_qps or 0)
    assert (other[0].low_qps or 0) < (one[0].high_qps or 0)


class OneModel(SharedServer):
    """The session of a search for the rate of one model, on the same host."""

    @property
    def runs(self) -> list[Any]:
        return [run for (run,) in self.probes]

    def run(self, schedule: Any, bound_ns: Any, max_late: Any = None, name: str = "") -> Any:
        if isinstance(schedule, list):
            return super().run(schedule, bound_ns, max_late)
        [run] = super().run([schedule], [(bound_ns, max_late)], name)
        return run


def test_a_mix_of_one_model_is_a_search_for_its_rate() -> None:
    model = load(40, 100)
    found = search_max_qps(model, OneModel([SLOW], 7))

    (answer, own, limited_by), _ = searched({"only": model}, [SLOW], 7)

    factor = answer.times(40.0)
    assert limited_by == "only"
    assert (factor.low_qps or 0) < (found.high_qps or 0)
    assert (found.low_qps or 0) < (factor.high_qps or 0)
    assert own["only"].times(40.0) == replace(factor, note="")


def test_a_bound_below_the_service_time_has_no_factor() -> None:
    (answer, _, limited_by), _ = searched({"a": load(40, 100), "b": load(10, 8)}, (FAST, (0.01, False)))

    assert (answer.rate_qps, answer.method, limited_by) == (None, Method.NONE.value, "b")
    assert answer.note.startswith("b: ")
    assert answer.note.endswith("queries with no queue before them were late")


def test_a_factor_beyond_what_can_be_sent_is_a_lower_bound() -> None:
    host = SharedServer((FAST, SLOW))
    answer, _, limited_by = search_factor(DISTINCT, host, 1.5)

    assert (answer.rate_qps, answer.high_qps, answer.method) == (1.5, None, Method.AT_LEAST.value)
    assert answer.note == "no more than 1.5 times the rates could be sent on time"
    assert limited_by == ""
    assert max(a.rate_qps for a, _ in host.probes) == 60


@pytest.mark.parametrize("arrival", ["poisson", "constant"])
def test_a_model_with_few_queries_lowers_the_lower_end_and_is_named(arrival: str) -> None:
    """At p99 with a query every 10 s, ten minutes cannot tell; at even gaps, the first probes have none."""
    rare = {"a": load(40, 100), "rare": load(0.1, 400, 99, arrival=arrival)}
    (answer, own, limited_by), _ = searched(rare, (FAST, SLOW))

    assert limited_by == "a"
    assert (answer.low_qps, own["rare"].low_qps) == (0.0, 0.0)
    assert own["rare"].note == "no factor is sure to keep its bound"
    assert "rare may limit it as well" in answer.note
    assert "the time budget was used up" in answer.note


def test_the_queries_of_all_probes_together_tell_that_a_slow_model_keeps_its_bound() -> None:
    """At p99 and some 20 queries/s, no probe of a short search has the 1,000 queries that allow ten late."""
    short: dict[str, Any] = {"time_budget_s": 120.0, "min_duration_s": 2.0}
    slow = {"a": load(40, 100, **short), "slow": load(5, 400, 99, **short)}

    found = [searched(slow, (FAST, SLOW), seed)[0] for seed in range(20)]

    assert all((answer.low_qps or 0.0) > 1.5 for answer, _, _ in found)


def test_probes_that_are_sent_too_late_do_not_count() -> None:
    """From a sum of 100 queries/s on, the harness lags; without that, the factor would be above 2.6."""
    (answer, own, _), host = searched(DISTINCT, (FAST, SLOW), lags_above=100.0)

    lagging = [a.rate_qps / 40 for a, b in host.probes if a.rate_qps + b.rate_qps > 100]
    assert sorted(lagging)[0] < 2.6
    assert (answer.rate_qps, answer.high_qps) == (2.0, 4.0)  # at 4, both were late for their own reasons
    assert answer.note == "no more than 2 times the rates could be sent on time"
    assert own["a"].rate_qps == 2.0


def test_a_probe_at_far_too_high_a_factor_is_stopped_early() -> None:
    _, host = searched({"a": load(40, 100), "b": load(400, 400)}, (FAST, SLOW))

    stopped = [a.queries for a, _ in host.probes if a.stop is Stop.HOPELESS]
    assert stopped
    assert any(queries.count(Outcome.UNSENT) for queries in stopped)


def test_the_time_budget_ends_the_search() -> None:
    short = {name: replace(each, time_budget_s=25.0) for name, each in DISTINCT.items()}
    (answer, _, _), host = searched(short, (FAST, SLOW))

    assert host.elapsed_s <= 25.0 + 1.0
    assert "the time budget was used up" in answer.note


def test_a_stop_interrupts_the_search() -> None:
    class Stopped(SharedServer):
        def run(self, *given: Any) -> Any:
            return [replace(run, stopped=Stop.INTERRUPTED.value) for run in super().run(*given)]

    with pytest.raises(EvaluationInterrupted, match="stopped during the search"):
        search_factor(DISTINCT, Stopped((FAST, SLOW)))
