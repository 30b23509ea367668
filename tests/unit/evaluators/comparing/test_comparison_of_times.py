"""Comparison of times: equal runs are no regression, a slow-down is one, noise is measured."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from inferometer.evaluators.load.queries import Outcome, Queries
from inferometer.evaluators.statistics import NEVER_NS
from inferometer.evaluators.verdict import (
    FIGURES,
    RunTimes,
    Verdict,
    compare,
    least_values,
    noise,
    parse_figures,
    percent_of,
    time_of,
)
from inferometer.manifests.errors import ConfigurationError

NONE = dict.fromkeys(FIGURES, 0.0)
FIVE_PERCENT = dict.fromkeys(FIGURES, 0.05)


def batches(random: np.random.Generator, count: int, *, slower: float = 1, spread: float = 0) -> RunTimes:
    """Batches whose time varies, and drifts within the run, and from run to run by ``spread``."""
    drift = np.convolve(random.normal(0, 0.01, count + 9), np.ones(10), "valid")
    factor = slower * math.exp(random.normal(0, spread))
    latency = 1e7 * factor * (1 + random.gamma(2, 0.02, count)) * np.exp(drift)
    return RunTimes.of_batches(np.rint(latency).astype(np.int64), np.full(count, 8))


def verdicts(runs: int, count: int, slower: float, spread: float, trials: int) -> dict[str, Counter[Verdict]]:
    random = np.random.default_rng(runs)
    found: dict[str, Counter[Verdict]] = {figure: Counter() for figure in FIGURES}
    for seed in range(trials):
        a = [batches(random, count, spread=spread) for _ in range(runs)]
        b = [batches(random, count, slower=slower, spread=spread) for _ in range(runs)]
        for ratio in compare(a, b, thresholds=NONE, seed=seed):
            found[ratio.figure][ratio.verdict] += 1
    return found


@pytest.mark.parametrize(("runs", "spread"), [(1, 0.0), (2, 0.03), (4, 0.03)])
def test_like_and_like_are_hardly_ever_told_apart(runs: int, spread: float) -> None:
    for figure, counts in verdicts(runs, 200, 1, spread, trials=60).items():
        assert counts[Verdict.WORSE] <= 4, figure
        assert counts[Verdict.BETTER] <= 4, figure


@pytest.mark.parametrize(("runs", "count", "spread"), [(1, 2000, 0.0), (4, 200, 0.03)])
def test_a_fifth_slower_is_found(runs: int, count: int, spread: float) -> None:
    for figure, counts in verdicts(runs, count, 1.2, spread, trials=20).items():
        assert counts[Verdict.WORSE] >= 19, figure


def test_faster_is_better_in_every_figure() -> None:
    random = np.random.default_rng(1)

    ratios = compare([batches(random, 3000)], [batches(random, 3000, slower=0.7)], thresholds=NONE, seed=1)

    assert [ratio.figure for ratio in ratios] == list(FIGURES)
    assert {ratio.verdict for ratio in ratios} == {Verdict.BETTER}
    assert ratios[0].value == pytest.approx(0.7, rel=0.02)
    assert ratios[-1].value == pytest.approx(1 / 0.7, rel=0.02)


def test_a_difference_within_the_threshold_is_the_same() -> None:
    random = np.random.default_rng(2)
    a, b = batches(random, 5000), batches(random, 5000, slower=1.02)

    assert {ratio.verdict for ratio in compare([a], [b], thresholds=FIVE_PERCENT, seed=1)} == {Verdict.SAME}


@pytest.mark.parametrize("end", [1.05, 1 / 1.05])
def test_an_interval_over_the_threshold_decides_nothing(end: float) -> None:
    random = np.random.default_rng(3)
    a, b = batches(random, 2500), batches(random, 2500, slower=end)

    ratio = compare([a], [b], thresholds=FIVE_PERCENT, seed=1)[0]

    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < end < ratio.high
    assert ratio.verdict is Verdict.UNDECIDED


def test_a_seed_gives_the_same_intervals() -> None:
    random = np.random.default_rng(4)
    a, b = [batches(random, 50) for _ in range(2)], [batches(random, 70)]

    first, again, other = (compare(a, b, thresholds=NONE, seed=seed) for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_values_that_are_slow_together_widen_the_interval() -> None:
    values = np.sort(np.random.default_rng(5).gamma(4, 1e6, 2000)).astype(np.int64)
    mixed = np.random.default_rng(6).permutation(values)
    sizes = np.ones(2000, np.int64)
    widths = []
    for latency in (values, mixed):
        run = RunTimes.of_batches(latency, sizes)
        ratio = compare([run], [run], thresholds=NONE, seed=1)[0]
        assert ratio.low is not None
        assert ratio.high is not None
        widths.append(math.log(ratio.high / ratio.low))

    assert widths[0] > 3 * widths[1]


def test_too_few_values_decide_nothing() -> None:
    random = np.random.default_rng(7)

    found = {
        r.figure: r for r in compare([batches(random, 100)], [batches(random, 300)], thresholds=NONE, seed=1)
    }

    assert found["p50"].low is not None
    assert found["p99"].low is None
    assert found["p99"].verdict is Verdict.UNDECIDED
    assert {r.low for r in compare([batches(random, 1)], [batches(random, 1)], thresholds=NONE, seed=1)} == {
        None
    }


def test_queries_without_an_answer_are_worse_than_any_latency() -> None:
    latency = np.random.default_rng(8).integers(1000, 2000, 3000)
    broken = np.where(np.arange(3000) % 20 == 0, NEVER_NS, latency)
    sizes = np.ones(3000, np.int64)
    a, b = RunTimes.of_batches(latency, sizes), RunTimes(broken, latency, sizes - (broken == NEVER_NS))

    found = {ratio.figure: ratio for ratio in compare([a], [b], thresholds=FIVE_PERCENT, seed=1)}
    back = {ratio.figure: ratio for ratio in compare([b], [a], thresholds=FIVE_PERCENT, seed=1)}
    both = {ratio.figure: ratio for ratio in compare([b], [b], thresholds=FIVE_PERCENT, seed=1)}

    assert math.isinf(found["p99"].value)
    assert found["p99"].verdict is Verdict.WORSE
    assert back["p99"].verdict is Verdict.BETTER
    assert both["p99"].verdict is Verdict.UNDECIDED
    assert found["throughput"].value == pytest.approx(0.95, rel=0.01)
    assert found["p50"].verdict is not Verdict.WORSE


def test_noise_is_the_largest_ratio_between_like_runs() -> None:
    runs = [
        RunTimes.of_batches(np.full(20, latency), np.ones(20, np.int64)) for latency in (1000, 1100, 1050)
    ]

    assert noise(runs) == pytest.approx(dict.fromkeys(FIGURES, 0.1))


def test_noise_without_an_answer_is_without_end() -> None:
    never = RunTimes(np.full(20, NEVER_NS), np.full(20, 5), np.zeros(20, np.int64))
    fine = RunTimes.of_batches(np.full(20, 1000), np.ones(20, np.int64))

    assert set(noise([never, fine]).values()) == {math.inf}
    assert set(noise([never, never]).values()) == {math.inf}


def test_what_cannot_be_compared_is_refused() -> None:
    run = RunTimes.of_batches(np.full(20, 5), np.full(20, 1))

    with pytest.raises(ValueError, match="each side needs"):
        compare([run], [], thresholds=NONE, seed=1)
    with pytest.raises(ValueError, match="no threshold for p90"):
        compare([run], [run], thresholds={"p50": 0.1}, seed=1)
    with pytest.raises(ValueError, match="at least two runs"):
        noise([run])
    with pytest.raises(ValueError, match="at least one value"):
        RunTimes.of_batches(np.array([], np.int64), np.array([], np.int64))
    with pytest.raises(ValueError, match="equal length"):
        RunTimes.of_batches(np.full(3, 1), np.full(2, 1))


def test_queries_take_the_run_from_the_first_arrival_to_the_last_answer() -> None:
    none = np.full(3, -1, np.int64)
    queries = Queries(
        scheduled_ns=np.array([10, 20, 30]),
        sent_ns=np.array([10, 20, -1]),
        done_ns=np.array([70, -1, -1]),
        outcome=np.array([Outcome.ANSWERED, Outcome.TIMED_OUT, Outcome.UNSENT], np.int64),
        queue_ns=none,
        predict_ns=none,
        batch_size=none,
    )

    run = RunTimes.of_queries(queries)

    assert run.latency_ns.tolist() == [60, NEVER_NS]
    assert run.elapsed_ns.tolist() == [10, 50]
    assert run.inputs.tolist() == [1, 0]


def test_queries_that_were_all_due_at_once_take_the_run_from_one_answer_to_the_next() -> None:
    none = np.full(5, -1, np.int64)
    queries = Queries(
        scheduled_ns=np.full(5, 10),
        sent_ns=np.full(5, 10),
        done_ns=np.array([40, 70, 40, -1, 90]),  # two of one batch
        outcome=np.where(np.arange(5) == 3, Outcome.TIMED_OUT, Outcome.ANSWERED),
        queue_ns=none,
        predict_ns=none,
        batch_size=none,
    )

    run = RunTimes.of_queries(queries)

    assert run.elapsed_ns.tolist() == [30, 30, 20]
    assert run.inputs.tolist() == [2, 1, 1]


def test_the_throughput_of_queries_that_were_due_at_once_has_an_interval() -> None:
    random = np.random.default_rng(11)

    def at_once(mean_ns: float) -> RunTimes:
        none, zero = np.full(500, -1, np.int64), np.zeros(500, np.int64)
        done = np.cumsum(random.gamma(50, mean_ns / 50, 500)).astype(np.int64)
        answered = np.full(500, Outcome.ANSWERED, np.int64)
        return RunTimes.of_queries(Queries(zero, zero, random.permutation(done), answered, none, none, none))

    [worse], [same] = (
        compare([at_once(1e6)], [at_once(mean)], thresholds=FIVE_PERCENT, seed=1, figures=["throughput"])
        for mean in (5e6, 1e6)
    )

    assert worse.verdict is Verdict.WORSE
    assert worse.value == pytest.approx(0.2, rel=0.05)
    assert same.low is not None
    assert same.high is not None
    assert same.low < 1 < same.high


def test_any_percentile_can_be_compared() -> None:
    random = np.random.default_rng(9)
    a, b = batches(random, 30_000), batches(random, 30_000, slower=1.3)
    figures = ("p99.9", "p25")
    thresholds = dict.fromkeys(figures, 0.05)

    rare, common = compare([a], [b], thresholds=thresholds, seed=1, figures=figures)

    assert (rare.figure, common.figure) == figures
    assert rare.a == pytest.approx(np.percentile(a.latency_ns, 99.9))
    assert common.b == pytest.approx(np.percentile(b.latency_ns, 25))
    assert rare.verdict is common.verdict is Verdict.WORSE
    assert common.value == pytest.approx(1.3, rel=0.02)
    assert list(noise([a, b], figures)) == list(figures)


def test_a_threshold_without_end_decides_nothing() -> None:
    run = batches(np.random.default_rng(10), 3000)

    ratios = compare([run], [run], thresholds=dict.fromkeys(FIGURES, math.inf), seed=1)

    assert {ratio.verdict for ratio in ratios} == {Verdict.UNDECIDED}


def test_percentiles_of_one_run_need_more_values_than_those_of_several() -> None:
    assert [least_values(figure, 1) for figure in FIGURES] == [40, 200, 2000, 10]
    assert [least_values(figure, 2) for figure in FIGURES] == [10, 20, 200, 10]


@pytest.mark.parametrize(("text", "names"), [(" P50,p99.9 ,p50", ("p50", "p99.9")), ("top1", ("top1",))])
def test_names_of_figures_are_read(text: str, names: tuple[str, ...]) -> None:
    assert parse_figures(text) == names


def test_names_are_required() -> None:
    with pytest.raises(ConfigurationError, match="names none"):
        parse_figures(" ,")


@pytest.mark.parametrize(
    ("figure", "percent", "time"),
    [
        ("p50", 50, ""),
        ("ttft_p99.9", 99.9, "ttft"),
        ("p0", None, ""),
        ("p100", None, ""),
        ("throughput", None, ""),
        ("ttft_p5o", None, ""),
    ],
)
def test_a_figure_names_its_percentile_and_its_time(figure: str, percent: float | None, time: str) -> None:
    assert (percent_of(figure), time_of(figure)) == (percent, time)
