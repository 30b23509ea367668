"""LoadGen on targets that respond, fail, hang or respond twice: it always ends, and all is counted."""

import time
from pathlib import Path

import numpy as np
import pytest

from inferometer.evaluators.kinds.load.measurement import Scenario
from inferometer.evaluators.kinds.load.mlperf import expected_qps, on_schedule, run_mlperf
from inferometer.evaluators.kinds.load.mlperf_settings import MlperfSettings, server_schedule
from inferometer.evaluators.kinds.load.summary import compared
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.issuer import RunLimits
from inferometer.evaluators.load.queries import Outcome, Queries, Stop

INPUTS = 7
LIMITS = RunLimits(10_000.0)


class Target:
    """Answers at once; does something else with the samples that are named, by their order."""

    def __init__(self, fails=(), hangs=(), twice=(), raises=()):
        self.fails, self.hangs, self.twice, self.raises = fails, hangs, twice, raises
        self.handed = []
        self.ended = False

    def begin(self, answers):
        self._answers = answers

    def submit(self, query):
        number = len(self.handed)
        self.handed.append(query)
        if number in self.raises:
            raise ZeroDivisionError("a target that is wrong")
        if number in self.fails:
            self._answers.failed(query, time.perf_counter_ns(), "it fails")
        elif number not in self.hangs:
            for _ in range(2 if number in self.twice else 1):
                self._answers.answered(query, time.perf_counter_ns(), predict_ns=1, batch_size=1)

    def end(self, timeout_s):
        self.ended = True


def settings(scenario: Scenario, **changes) -> MlperfSettings:
    given = {
        "scenario": scenario,
        "rate_qps": 500.0,
        "bound_ns": 10_000_000_000,
        "percentile": 90.0,
        "min_duration_s": 0.0,
        "min_queries": 70,
        "seed": 7,
    }
    return MlperfSettings(**given | changes)


@pytest.mark.parametrize("scenario", Scenario)
def test_each_sample_is_counted_once_and_loadgen_agrees(scenario: Scenario, tmp_path: Path) -> None:
    target = Target(twice=(3, 5))
    asked = settings(scenario)

    run, result = run_mlperf(target, asked, INPUTS, tmp_path, LIMITS)

    queries = run.queries
    samples = 70 * scenario.samples_per_query
    assert len(queries) == samples
    assert queries.count(Outcome.ANSWERED) == samples
    assert queries.repeated == 2
    assert run.stop is Stop.COMPLETE
    assert target.ended
    assert [query // INPUTS for query in target.handed] == list(range(samples))
    assert {query % INPUTS for query in target.handed} == set(range(INPUTS))
    assert result.valid, result.reasons
    assert result.queries == 70
    assert result.version.startswith("6.")
    assert (queries.sent_ns >= queries.scheduled_ns).all()
    if scenario is Scenario.SERVER:
        schedule, _ = server_schedule(asked)
        assert result.clock_known
        assert run.checksum == schedule.checksum
        assert queries.scheduled_ns.tolist() == schedule.offsets_ns.tolist()
    elif scenario is Scenario.OFFLINE:
        assert not queries.scheduled_ns.any()
    else:
        assert (queries.sent_ns == queries.scheduled_ns).all()
    figures = compared(queries, scenario, result)
    assert [figure.percent for figure in figures if figure.percent] == [50, 90, 95, 97, 99, 99.9]
    for figure in figures:
        if figure.percent:  # by the same clock, LoadGen's end comes after ours, and its begin before
            assert figure.ours is not None
            assert 0 <= figure.ours <= figure.loadgen


def test_no_query_was_sent_before_it_was_due() -> None:
    columns = {name: np.zeros(4, np.int64) for name in ("outcome", "queue_ns", "predict_ns", "batch_size")}
    sent_ns, done_ns = np.array([0, 90, 200, -1]), np.array([30, 95, -1, -1])
    queries = Queries(scheduled_ns=sent_ns, sent_ns=sent_ns, done_ns=done_ns, **columns)
    schedule = Schedule(np.array([0, 100, 205, 300, 400]), "server", 0.0)

    found = on_schedule(queries, schedule)

    assert found.scheduled_ns.tolist() == [0, 100, 205, 300]
    assert found.sent_ns.tolist() == [10, 100, 210, -1]
    assert found.done_ns.tolist() == [40, 105, -1, -1]


def test_the_seed_chooses_the_inputs(tmp_path: Path) -> None:
    handed = []
    for number, seed in enumerate((1, 1, 2)):
        target = Target()
        directory = tmp_path / str(number)
        directory.mkdir()
        run_mlperf(target, settings(Scenario.SINGLE_STREAM, seed=seed), INPUTS, directory, LIMITS)
        handed.append(target.handed)
    assert handed[0] == handed[1] != handed[2]


@pytest.mark.parametrize("scenario", Scenario)
def test_failures_go_to_loadgen_as_answers_and_make_the_run_invalid(
    scenario: Scenario, tmp_path: Path
) -> None:
    run, result = run_mlperf(Target(fails=range(10, 20)), settings(scenario), INPUTS, tmp_path, LIMITS)

    queries = run.queries
    assert queries.count(Outcome.FAILED) == 10
    assert queries.count(Outcome.ANSWERED) == len(queries) - 10
    assert run.reasons == {"it fails": 10}
    assert f"10 of {len(queries)} samples have no right answer" in run.invalid
    assert result.queries == 70
    latest = compared(queries, scenario, result)[-1]
    assert latest.ours is None
    assert latest.difference is None


@pytest.mark.parametrize("scenario", Scenario)
def test_a_sample_that_is_never_answered_is_given_up(scenario: Scenario, tmp_path: Path) -> None:
    run, result = run_mlperf(Target(hangs=(10,)), settings(scenario), INPUTS, tmp_path, RunLimits(300.0))

    queries = run.queries
    assert run.stop is Stop.COMPLETE
    assert queries.count(Outcome.TIMED_OUT) == 1
    assert queries.count(Outcome.ANSWERED) == len(queries) - 1
    assert "1 of " in run.invalid
    assert result.percentiles_ns[-1][1] >= 300_000_000


def test_more_samples_than_the_window_holds_are_handed_over_as_answers_come(tmp_path: Path) -> None:
    class Held(Target):
        """Keeps answers back until as many wait as may."""

        most = 0

        def __init__(self):
            super().__init__()
            self.waiting = []

        def submit(self, query):
            self.waiting.append(query)
            self.most = max(self.most, len(self.waiting))
            if len(self.waiting) == 10:
                for each in self.waiting:
                    self._answers.answered(each, time.perf_counter_ns())
                self.waiting = []

    target = Held()
    run, _ = run_mlperf(target, settings(Scenario.OFFLINE, window=10), INPUTS, tmp_path, LIMITS)

    assert target.most == 10
    assert run.queries.count(Outcome.ANSWERED) == 70
    assert (np.diff(run.queries.sent_ns) >= 0).all()


def test_what_a_target_raises_ends_the_run_and_is_raised(tmp_path: Path) -> None:
    target = Target(raises=(2,))
    with pytest.raises(ZeroDivisionError, match="a target that is wrong"):
        run_mlperf(target, settings(Scenario.OFFLINE), INPUTS, tmp_path, LIMITS)
    assert target.ended


def test_the_rate_to_expect_is_that_of_loadgens_queries() -> None:
    class Slow(Target):
        def submit(self, query):
            time.sleep(0.002)
            super().submit(query)

    single = expected_qps(Slow(), Scenario.SINGLE_STREAM, 1, RunLimits(1000))
    eight = expected_qps(Slow(), Scenario.MULTI_STREAM, 1, RunLimits(1000))
    assert single is not None
    assert eight is not None
    assert 25 < single <= 1.25 * 500
    assert 3 < eight <= 1.25 * 500 / 8
    assert expected_qps(Target(fails=range(10**9)), Scenario.OFFLINE, 4, RunLimits(100)) is None


def test_a_slow_probe_is_repeated_until_two_agree() -> None:
    class SlowAtFirst(Target):
        def __init__(self, slow_runs, slow_s):
            super().__init__()
            self.begun, self.slow_runs, self.slow_s = 0, slow_runs, slow_s

        def begin(self, answers):
            self.begun += 1
            super().begin(answers)

        def submit(self, query):
            time.sleep(self.slow_s if self.begun <= self.slow_runs else 0.005)
            super().submit(query)

    steady, slow_once = SlowAtFirst(0, 0), SlowAtFirst(1, 0.1)
    steady_qps, slow_once_qps = (
        expected_qps(target, Scenario.SINGLE_STREAM, 1, RunLimits(1000)) for target in (steady, slow_once)
    )
    assert steady_qps is not None
    assert slow_once_qps is not None
    assert slow_once_qps > 3 * 1.25 / 0.1  # three times what the first probe measures
    assert 2 <= steady.begun <= 5
    assert 3 <= slow_once.begun <= 5


@pytest.mark.real_time
def test_the_rate_to_expect_takes_a_bounded_time() -> None:
    class Slower(Target):
        """Each run is ten times as slow as the one before, so that no two agree."""

        delay_s = 0.00005
        begun = 0

        def begin(self, answers):
            self.begun, self.delay_s = self.begun + 1, 10 * self.delay_s
            super().begin(answers)

        def submit(self, query):
            time.sleep(self.delay_s)
            super().submit(query)

    target = Slower()
    begin = time.monotonic()
    found = expected_qps(target, Scenario.SINGLE_STREAM, 1, RunLimits(1000))

    assert target.begun <= 5
    assert time.monotonic() - begin < 10
    assert found is not None
    assert found > 1.25 / 0.005  # more than any but the first can give
