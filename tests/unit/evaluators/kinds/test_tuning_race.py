"""The race of configurations on simulated hosts, whose best configuration is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferometer.evaluators.kinds.load.measurement import Method, RateAnswer
from inferometer.evaluators.kinds.tuning.figures import BLOCKS, SEQUENCES, Figure, Trial, TuningMeasurement
from inferometer.evaluators.kinds.tuning.kind import TuningKind
from inferometer.evaluators.kinds.tuning.request import Configuration
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.queries import LoadRun, Outcome, Stop
from tests.contract.store_fixtures import make_evaluation
from tests.load_runs import run_of
from tests.tuned_hosts import Host, SimulatedProber, highest_qps, race_of, request_of

SERIAL = Host(cores=4, fixed_s=0.004, query_s=0.001)
"""Batches pay off: one of 16 takes 20 ms, where 16 of one take 80 ms."""


def configurations(
    sizes: Iterable[int] = (1, 4, 16), instances: Iterable[int] = (1, 2)
) -> list[Configuration]:
    return [Configuration(count, 1, size, 0.0) for count in instances for size in sizes]


def by_batch(trials: Iterable[Trial]) -> dict[tuple[int, int], Trial]:
    return {(each.configuration.instances, each.configuration.max_batch_size): each for each in trials}


SEARCHED_S = {0: 726, 1: 3264, 6: 927, 8: 1532, 10: 826, 13: 831}
"""How long a search for the highest rate of every configuration takes on some hosts; see tests/perf."""


@pytest.mark.parametrize("seed", SEARCHED_S)
def test_the_best_configuration_is_found_within_3_percent_in_little_time(seed: int) -> None:
    host = Host.drawn(seed)
    request = request_of(seed, host.bound_ms(seed))
    space = list(request.configurations(host.cores, on_gpu=False))
    prober = SimulatedProber(host, seed)
    race = race_of(request, space, prober)

    assert race.run()

    assert race.best is not None
    answer = race.answer()
    assert answer is not None
    rough = {each: highest_qps(host, each, request.latency_bound_ms, 2_000) for each in space}
    near = {each for each in space if rough[each] > 0.9 * max(rough.values())} | {race.best.configuration}
    exact = {each: highest_qps(host, each, request.latency_bound_ms, 20_000, rough[each]) for each in near}
    best = race.best.configuration
    assert exact[best] >= 0.97 * max(exact.values())
    found_qps = highest_qps(host, best, request.latency_bound_ms, 200_000, exact[best])
    assert answer.low_qps < answer.rate_qps < answer.high_qps  # type: ignore[operator]
    assert answer.rate_qps == pytest.approx(found_qps, rel=0.05)
    assert prober.elapsed_s <= 0.2 * SEARCHED_S[seed]


TRUE_QPS = {0: 2829, 2: 5574, 5: 2799, 8: 982, 10: 2063, 13: 1001, 15: 7553, 17: 3220}
"""The true rate of what is found on some hosts, within 0.5 %: the mean over three times 700,000 queries."""


def test_the_interval_holds_the_true_rate_and_is_narrow() -> None:
    held, widths = [], []
    for seed, true_qps in TRUE_QPS.items():
        host = Host.drawn(seed)
        request = request_of(seed, host.bound_ms(seed))
        race = race_of(request, request.configurations(host.cores, on_gpu=False), SimulatedProber(host, seed))
        race.run()
        answer = race.answer()
        assert answer is not None
        assert answer.rate_qps == pytest.approx(true_qps, rel=0.06)  # the same configuration
        held.append(answer.low_qps < true_qps < answer.high_qps)  # type: ignore[operator]
        widths.append(answer.high_qps / answer.low_qps - 1)  # type: ignore[operator]

    assert sum(held) >= len(TRUE_QPS) - 1
    assert np.median(widths) < 0.06


class _LateProber(SimulatedProber):
    """The first sequence of a round, which by default is to confirm the best, uses up the time."""

    late = "round 6"

    def run(self, schedule: Schedule, *arguments: Any) -> LoadRun:
        self.elapsed_s += 86_400.0 * arguments[-1].startswith(self.late)
        return super().run(schedule, *arguments)


def test_without_time_to_confirm_there_is_no_interval() -> None:
    race = race_of(request_of(0, 60.0), configurations(), _LateProber(SERIAL))

    assert race.run()

    best = race.trials()[0]
    assert race.answer() is None
    assert best is race.best
    assert best.rate_qps is not None
    assert (best.low, best.high) == (None, None)


def test_without_time_to_confirm_a_rate_that_one_probe_kept_is_no_end_of_an_interval() -> None:
    prober = _LateProber(SERIAL)
    prober.late = "round 1"
    race = race_of(request_of(0, 60.0), configurations(), prober)

    assert race.run()

    answer = race.answer()
    assert answer is not None
    assert (answer.method, answer.low_qps, answer.high_qps) == (Method.AT_LEAST.value, None, None)
    note = f"no rate above {answer.rate_qps:.4g} queries/s was sent, and this one was not confirmed"
    assert answer.note == f"{note}; the time budget was used up"


def test_without_time_for_a_round_it_is_not_known_whether_the_bound_can_be_kept() -> None:
    prober, request = _LateProber(SERIAL), request_of(0, 60.0)
    prober.late = "round 0"
    race = race_of(request, configurations(), prober)

    assert race.run()

    assert race.answer() is None
    options = request.load.load_options()
    measured = TuningMeasurement(options, tuple(prober.runs), 0, race.answer(), race.trials())
    told = dict(TuningKind().summary(make_evaluation(measurement=measured)))
    assert (told["best"], told["answer"]) == ("none", "not known: the time budget was used up")


def test_all_probes_of_a_round_have_the_same_arrivals_scaled() -> None:
    prober = SimulatedProber(SERIAL)
    race = race_of(request_of(0, 60.0), configurations(), prober)

    race.run()

    units: dict[int | None, np.ndarray] = {}
    for run in prober.runs:
        if run.rate_qps:
            found = run.queries.scheduled_ns * run.rate_qps / 1e9
            longest = units.setdefault(run.seed, found)
            count = min(len(found), len(longest))
            np.testing.assert_allclose(found[:count], longest[:count], atol=1e-3)
    assert 1 + SEQUENCES <= len(units) <= 5 + SEQUENCES  # rounds, and the confirmation


def test_losers_end_early_and_the_table_says_why() -> None:
    prober = SimulatedProber(SERIAL)
    race = race_of(request_of(0, 60.0), configurations(), prober)

    race.run()

    trials = race.trials()
    assert trials[0] is race.best
    assert (trials[0].configuration.instances, trials[0].configuration.max_batch_size) == (2, 16)
    assert all(each.stopped for each in trials[1:])
    assert not trials[0].stopped
    assert by_batch(trials)[1, 1].stopped == "its burst is slower than what the best keeps"
    assert by_batch(trials)[1, 1].rounds == 0
    assert trials[0].spent_s > sum(each.spent_s for each in trials[1:])
    assert sorted(number for each in trials for number in each.probes) == list(range(len(prober.runs)))


class ScriptedProber:
    """Answers every burst at 1,000 queries/s, and keeps the bound up to a rate that each batch size has."""

    def __init__(self, highest_qps: dict[int, float]) -> None:
        self.elapsed_s = self.watts = 0.0
        self.probed: set[int] = set()
        self.highest_qps = highest_qps
        self._size = 0

    def use(self, c: Configuration) -> str:
        self._size = c.max_batch_size
        return ""

    def run(self, schedule: Schedule, bound_ns: int | None, max_late: int | None, name: str) -> LoadRun:
        due, rate_qps = schedule.offsets_ns, schedule.rate_qps
        if not rate_qps:
            return LoadRun(0.0, "burst", None, "", run_of(due, np.arange(1, len(due) + 1) * 1_000_000))
        self.probed.add(self._size)
        late = rate_qps > self.highest_qps[self._size]
        stopped = Stop.HOPELESS.value if late else ""
        return LoadRun(rate_qps, "poisson", 0, "", run_of(due, due * 0 + 1 + late * 10**9), stopped=stopped)


def test_a_batch_beyond_one_that_lost_is_not_probed() -> None:
    prober = ScriptedProber({1: 500, 2: 520, 4: 800, 8: 790, 16: 400, 32: 990})
    race = race_of(request_of(0, 60.0), configurations(prober.highest_qps, (1,)), prober)

    race.run()

    trials = by_batch(race.trials())
    assert race.best is not None
    assert race.best.configuration.max_batch_size in {4, 8}
    assert prober.probed == {1, 2, 4, 8, 16}
    assert trials[1, 32].stopped == "batch 16 has lost, and the rate has one peak over the batch"


class _UnluckyProber(ScriptedProber):
    """Batches of 16 break the bound by a few late queries, as if by chance; the rest is as scripted."""

    def run(self, schedule: Schedule, *arguments: Any) -> LoadRun:
        run = super().run(schedule, *arguments)
        if self._size != 16 or not schedule.rate_qps:
            return run
        due = schedule.offsets_ns
        late = np.arange(len(due)) % 67 == 0
        return replace(run, queries=run_of(due, due + 1 + late * 10**9), stopped="")


def test_a_batch_that_lost_by_chance_excludes_no_other() -> None:
    prober = _UnluckyProber({4: 700, 16: 0, 32: 990})
    race = race_of(request_of(0, 60.0), configurations(prober.highest_qps, (1,)), prober)

    race.run()

    trials = by_batch(race.trials())
    assert "breaks the bound at" in trials[1, 16].stopped
    assert race.best is trials[1, 32]


def test_an_impossible_configuration_is_left_out_with_its_reason() -> None:
    space = [*configurations(), Configuration(64, 1, 4, 0.0), Configuration(1, 1, 4, 90.0)]
    race = race_of(request_of(0, 60.0), space, SimulatedProber(SERIAL))

    race.run()

    stopped = {each.configuration: each.stopped for each in race.trials()}
    assert stopped[space[-2]] == "not possible: there is no room"
    assert stopped[space[-1]] == "a batch may wait for as long as the bound"
    assert race.best is not None


def test_the_smallest_latency_at_a_rate_needs_no_large_batches() -> None:
    """At a rate that even single queries keep, what matters is the time of the operators."""
    host = Host(cores=4, fixed_s=0.002, query_s=0.002, parallel=0.9)
    request = request_of(0, 100.0, rate_qps=100.0)
    space = [Configuration(1, threads, size, 0.0) for threads in (1, 2, 4) for size in (1, 8)]
    race = race_of(request, space, SimulatedProber(host))

    race.run()

    best, trials = race.best, race.trials()
    assert race.answer() is None
    assert best is not None
    assert best.configuration.threads == 4
    assert best.latency_ms is not None
    assert best.low is not None
    assert best.high is not None
    assert best.low < best.latency_ms < best.high
    assert best.rate_qps == 100.0
    slow = next(each for each in trials if each.configuration.threads == 1)
    assert "p99 is above" in slow.stopped


def test_a_rate_that_nothing_can_answer_has_no_best() -> None:
    race = race_of(request_of(0, 60.0, rate_qps=5_000.0), configurations(), SimulatedProber(SERIAL))

    race.run()

    assert race.best is None
    assert all(each.stopped == "its burst is slower than the rate" for each in race.trials())


def test_a_bound_that_nothing_keeps_is_said() -> None:
    race = race_of(request_of(0, 2.0), configurations(), SimulatedProber(SERIAL))

    race.run()

    answer = race.answer()
    assert answer is not None
    assert (answer.method, answer.rate_qps) == (Method.NONE.value, None)
    assert any("breaks the bound even at" in each.stopped for each in race.trials())


def test_above_what_can_be_sent_the_answer_is_a_bound() -> None:
    prober = SimulatedProber(SERIAL)
    race = race_of(request_of(0, 60.0), configurations(), prober, 150.0)

    race.run()

    answer = race.answer()
    assert answer is not None
    assert (answer.method, answer.rate_qps) == (Method.AT_LEAST.value, pytest.approx(150.0))
    assert (answer.low_qps, answer.note) == (answer.rate_qps, "no rate above 150 queries/s was sent")
    options = request_of(0, 60.0).load.load_options()
    measured = TuningMeasurement(options, tuple(prober.runs), 0, answer, race.trials())
    assert measured.another is None
    assert all(each.better is None for each in measured.trials if each.rounds == measured.trials[0].rounds)
    told = dict(TuningKind().summary(make_evaluation(measurement=measured)))
    assert told["another"] == UNKNOWN


def test_others_that_kept_more_than_the_confirmed_rate_may_be_better() -> None:
    """In the rounds, two keep all that can be sent, and in the confirmation, one keeps less."""
    prober = ScriptedProber({4: 990, 8: 990})
    race = race_of(request_of(0, 60.0), configurations(prober.highest_qps, (1,)), prober, 700.0)
    race.run()
    best, *others = race.trials()
    answer = RateAnswer(600.0, 590.0, 610.0, Method.LATE_FRACTION.value, "")
    trials = (replace(best, rate_qps=600.0, probes=[]), *others)
    measured = TuningMeasurement(request_of(0, 60.0).load.load_options(), (), 0, answer, trials)

    assert (others[0].rate_qps, others[0].better) == (pytest.approx(700.0), None)
    assert measured.another is None
    assert dict(TuningKind().summary(make_evaluation(measurement=measured)))["another"] == UNKNOWN


UNKNOWN = "may be better, which is unknown: in the race, a rate was only a lower bound"


def test_when_the_time_is_used_up_the_best_so_far_is_kept() -> None:
    prober = SimulatedProber(SERIAL)
    request = request_of(0, 60.0, time_budget_s=9.0)
    race = race_of(request, configurations((8, 12, 16, 24), (2,)), prober)

    assert race.run()

    assert race.best is not None
    assert race.note == "the time budget was used up"
    assert prober.elapsed_s < 60
    assert all(each.stopped for each in race.trials() if each is not race.best)


def test_a_confirmation_for_which_the_time_cannot_suffice_is_not_begun() -> None:
    """Eight sequences of 1,000 queries, the fewest at p99.9, take 53 s at 150 queries/s."""
    prober = SimulatedProber(Host(cores=2, fixed_s=0.006, query_s=0.0015), 1)
    request = request_of(1, 40.0, time_budget_s=60.0, percentile=99.9)
    race = race_of(request, configurations((1, 2), (1,)), prober)

    assert race.run()

    assert (race.note, race.answer()) == ("too little time was left to confirm it", None)
    assert prober.elapsed_s < 60


def test_a_confirmation_ends_with_a_wider_interval_before_a_probe_that_would_be_late() -> None:
    host = Host.drawn(10)
    request = request_of(10, host.bound_ms(10), time_budget_s=80.0)
    prober = SimulatedProber(host, 10)
    race = race_of(request, request.configurations(host.cores, on_gpu=False), prober)

    assert race.run()

    answer = race.answer()
    assert answer is not None
    assert answer.note == "too little time was left for another probe"
    assert answer.low_qps < TRUE_QPS[10] < answer.high_qps  # type: ignore[operator]
    assert prober.elapsed_s < 80


def test_a_stop_keeps_what_was_probed() -> None:
    prober = SimulatedProber(SERIAL, interrupted_after=12)
    race = race_of(request_of(0, 60.0), configurations(), prober)

    assert not race.run()

    assert len(prober.runs) == 13
    assert sum(len(each.probes) for each in race.trials()) == 13
    assert any(each.capacity_qps for each in race.trials())


@pytest.mark.parametrize(("most_mib", "size"), [(40, 8), (20, 4), (5, None)])
def test_a_configuration_whose_memory_peaks_above_the_limit_is_stopped(
    most_mib: int, size: int | None
) -> None:
    """A query of a batch takes 4 MiB; the first reading after a switch has what was open before."""
    prober = SimulatedProber(SERIAL)
    read: list[Configuration] = []

    def read_peak_bytes() -> int:
        used = prober.used[-1]
        fresh = bool(read) and read[-1] is used
        read.append(used)
        return used.max_batch_size * 4 * 2**20 if fresh else 10**12

    request = request_of(0, 60.0, max_memory_mib=most_mib)
    prober.read_peak_bytes = read_peak_bytes  # type: ignore[method-assign]
    race = race_of(request, configurations((2, 4, 8, 16), (1,)), prober)

    race.run()

    trials = {each.configuration.max_batch_size: each for each in race.trials()}
    assert (race.best.configuration.max_batch_size if race.best else None) == size
    assert trials[16].stopped == f"its memory peaks above {most_mib} MiB"
    assert trials[16].memory_bytes == 64 * 2**20
    assert trials[16].rounds == 0
    if size is None:
        answer = race.answer()
        assert answer is not None
        assert answer.note == "no configuration stays within the memory limit"


def test_what_is_surely_worse_does_not_go_on() -> None:
    race = race_of(request_of(0, 60.0), configurations((1, 2, 4, 8), (1,)), ScriptedProber({}))
    left = list(race.trials())
    for place, (each, better) in enumerate(zip(left, (None, 0.004, 0.006, 0.3), strict=True)):
        race._figures[each.configuration], each.better = Figure(-place, np.zeros(BLOCKS)), better

    assert race._remaining(left) == left[:1]
    assert left[1].stopped == "it is worse with a probability of 99.6 %"
    assert left[2].stopped == "it came in place 3 of 4 in round 0"


def test_precisions_race_and_each_answers_a_burst_of_its_own() -> None:
    prober = SimulatedProber(SERIAL)
    space = [Configuration(1, 1, 8, delay, name) for name in ("float32", "bfloat16") for delay in (0.0, 1.0)]
    race = race_of(request_of(0, 60.0), space, prober)

    race.run()

    assert race.best is not None
    assert race.best.configuration.precision == "bfloat16"
    bursts = {each.configuration: each.capacity_qps for each in race.trials()}
    assert bursts[space[0]] == bursts[space[1]]  # full batches do not wait
    assert bursts[space[2]] == pytest.approx(bursts[space[0]] / 0.6, rel=0.1)  # type: ignore[operator]


def test_a_query_that_was_not_sent_is_not_late() -> None:
    race = race_of(request_of(0, 60.0), configurations(), ScriptedProber({}))
    race._queries = 40
    outcomes = [Outcome.ANSWERED] * 10 + [Outcome.WAITING] * 10 + [Outcome.UNSENT] * 10
    run = LoadRun(1.0, "poisson", 0, "", run_of(np.arange(30), [9] * 30, outcomes))

    late, count = race._late([run], 5.0)

    assert (late.sum(), count) == (10 + 4, 40)  # four wait for longer than 5 ns when the last one is sent


class _UnevenProber(ScriptedProber):
    """Answers the first burst the fastest, and the second one faster than the third."""

    def run(self, schedule: Schedule, *arguments: Any) -> LoadRun:
        run = super().run(schedule, *arguments)
        if schedule.rate_qps:
            return run
        self.bursts = getattr(self, "bursts", 0) + 1
        due = schedule.offsets_ns
        return replace(run, queries=run_of(due, np.arange(1, len(due) + 1) * 1_000_000 * self.bursts))


def test_the_capacity_is_that_of_the_faster_burst_after_one_to_warm_up() -> None:
    race = race_of(request_of(0, 60.0), configurations((1,), (1,)), _UnevenProber({1: 500}))

    race.run()

    assert race.trials()[0].capacity_qps == pytest.approx(500)


class _FadingProber(ScriptedProber):
    """A machine on which, after a number of probes, nothing keeps the bound any more."""

    def run(self, schedule: Schedule, bound_ns: int | None, max_late: int | None, name: str) -> LoadRun:
        if schedule.rate_qps and name.startswith("round 6"):
            self.highest_qps = dict.fromkeys(self.highest_qps, 0.0)
        return super().run(schedule, bound_ns, max_late, name)


def test_a_best_that_breaks_the_bound_on_fresh_arrivals_is_no_answer() -> None:
    race = race_of(request_of(0, 60.0), configurations((1,), (1,)), _FadingProber({1: 500}))

    assert race.run()

    answer = race.answer()
    assert answer is not None
    assert race.best is None
    assert (answer.rate_qps, answer.method) == (None, Method.NONE.value)
    assert answer.note.startswith("the best of an earlier round lost: it breaks the bound even at")


def test_the_rate_is_found_although_a_burst_overstates_it_tenfold() -> None:
    race = race_of(request_of(0, 60.0), configurations((1,), (1,)), ScriptedProber({1: 50}))

    assert race.run()

    assert race.trials()[0].rate_qps == pytest.approx(50, rel=0.1)
