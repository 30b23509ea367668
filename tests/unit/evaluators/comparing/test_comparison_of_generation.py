"""Comparison of generated answers, and of searches for their highest rate, whose true ratios are known."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from inferometer.client.web.documents import comparison_document
from inferometer.evaluators.comparing.comparison import Side, compare_rates
from inferometer.evaluators.comparing.job import Comparison, ComparisonRequest, compare
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.kinds.generation.measurement import GenerationMeasurement, GenerationSummary
from inferometer.evaluators.kinds.load.measurement import Method, RateAnswer
from inferometer.evaluators.load.queries import Outcome
from inferometer.evaluators.load.streams import Answer
from inferometer.evaluators.verdict import Verdict
from inferometer.manifests.errors import ConfigurationError
from tests.contract.store_fixtures import make_evaluation
from tests.generated_answers import answer, measured
from tests.reports.loads import bounded

BOUNDS = {"ttft_bound_ms": 70.0, "e2e_bound_ms": 150.0}


def generated(
    seed: int,
    slower: float = 1.0,
    count: int = 400,
    broken: int = 0,
    outcome: Outcome = Outcome.TIMED_OUT,
    run: dict[str, Any] | None = None,
    **more: Any,
) -> GenerationMeasurement:
    """Answers with a TTFT of about 50 ms and gaps of about 10 ms; every ``broken``-th is none."""
    random = np.random.default_rng(seed)
    ttft_ms, gap_ms = (random.gamma(25, mean / 25, count) * slower for mean in (50, 10))
    answers = [answer(100 * n, ttft_ms[n], gap_ms[n]) for n in range(count)]
    outcomes = [Outcome.ANSWERED] * count
    for number in range(broken, count, broken) if broken else ():
        answers[number], outcomes[number] = Answer(), outcome
    found = measured(answers, outcomes, cut_ms=100 * count // 10, **{"options": {"seed": seed}} | more)
    return replace(found, run=replace(found.run, **run or {}))


def closed(seed: int, gap_ms: float, count: int = 400, users: int = 1) -> GenerationMeasurement:
    """A closed loop whose every request is due ``gap_ms`` after the one before."""
    random = np.random.default_rng(seed)
    answers = [answer(gap_ms * n, 0.3 * gap_ms * random.uniform(0.9, 1.1), gap_ms / 10) for n in range(count)]
    found = measured(answers, gap_ms=gap_ms, lag_ms=0, cut_ms=gap_ms * count / 10, options={"seed": seed})
    loop = {"rate_qps": 0.0, "source": f"closed loop, {users} in flight", "checksum": "", "seed": None}
    return replace(found, run=replace(found.run, **loop))


def evaluated(measurement: GenerationMeasurement, **changes: Any) -> Evaluation:
    return make_evaluation(measurement=measurement, id=str(uuid.uuid4()), **changes)


def side(name: str, *measurements: GenerationMeasurement) -> Side:
    return Side(name, tuple(map(evaluated, measurements)))


def compared(
    a: Sequence[GenerationMeasurement], b: Sequence[GenerationMeasurement], **more: Any
) -> Comparison:
    return compare(ComparisonRequest(a=side("A", *a), b=side("B", *b), **more))


def row(found: Comparison, figure: str) -> dict[str, Any]:
    [one] = [each for each in found.rows if each["figure"] == figure]
    return dict(one)


def test_the_interval_covers_a_fifth_more_and_like_is_told_from_it() -> None:
    covered, alike = dict.fromkeys(("ttft_p50", "tpot_p90"), 0), 0
    for seed in range(40):
        found = compared(
            [generated(seed, count=250)],
            [generated(100 + seed, 1.2, 250)],
            figures=tuple(covered),
            threshold=0.0,
        )
        for figure in covered:
            covered[figure] += bool(
                row(found, figure)["ratio_low"] <= 1.2 <= row(found, figure)["ratio_high"]
            )
        like = compared(
            [generated(seed, count=250)], [generated(200 + seed, count=250)], figures=("e2e_p50",)
        )
        alike += row(like, "e2e_p50")["verdict"] not in ("worse", "better")

    assert min(covered.values()) >= 34, covered
    assert alike >= 38


def test_by_default_each_time_has_p50_and_what_the_number_of_requests_allows_and_rates_follow() -> None:
    few, some, many = (
        compared([generated(1, count=count)], [generated(2, count=count)]) for count in (100, 400, 2300)
    )
    rates = ["tokens", "throughput"]

    assert [each["figure"] for each in few.rows] == ["ttft_p50", "tpot_p50", "e2e_p50", *rates]
    assert [each["figure"] for each in some.rows][:4] == ["ttft_p50", "ttft_p90", "tpot_p50", "tpot_p90"]
    assert [each["figure"] for each in many.rows][:2] == ["ttft_p50", "ttft_p99"]
    assert {row(many, f"{name}_p50")["verdict"] for name in ("ttft", "tpot", "e2e")} == {"same"}
    assert [each["unit"] for each in few.rows] == ["ms", "ms", "ms", "tokens/s", "requests/s"]
    several = [generated(n, count=100) for n in range(8)]
    assert "ttft_p99" in [each["figure"] for each in compared(several[:4], several[4:]).rows]


def test_the_figures_of_each_side_are_those_of_its_report() -> None:
    a, b = generated(1, options=BOUNDS), generated(2, 1.3, options=BOUNDS)
    summaries = GenerationSummary(a), GenerationSummary(b)

    found = compared([a], [b])

    for place, summary in zip("ab", summaries, strict=True):
        for name in ("ttft", "tpot", "e2e"):
            times = getattr(summary, name)
            assert row(found, f"{name}_p50")[place] == pytest.approx(times.p50_ns / 1e6)
            assert row(found, f"{name}_p90")[place] == pytest.approx(times.p90_ns / 1e6)
        assert row(found, "tokens")[place] == pytest.approx(summary.output_tokens.per_s)
        assert row(found, "throughput")[place] == pytest.approx(summary.requests.per_s)
        assert row(found, "goodput")[place] == pytest.approx(summary.goodput.per_s)
    assert row(found, "goodput")["verdict"] == "worse"


def test_a_closed_loop_that_takes_a_fifth_longer_has_a_sixth_less_of_every_rate() -> None:
    found = compared([closed(1, 100)], [closed(2, 120)])

    for figure in ("tokens", "throughput"):
        one = row(found, figure)
        assert one["ratio"] == pytest.approx(1 / 1.2, rel=0.01)
        assert one["verdict"] == "worse"
    assert row(found, "ttft_p50")["ratio"] == pytest.approx(1.2, rel=0.02)
    assert row(compared([closed(1, 100)], [closed(2, 101)]), "tokens")["verdict"] == "same"


@pytest.mark.parametrize("outcome", [Outcome.TIMED_OUT, Outcome.FAILED])
def test_requests_without_a_right_answer_are_later_than_any_bound(outcome: Outcome) -> None:
    a, b = generated(1), generated(2, broken=5, outcome=outcome)

    found, back = compared([a], [b]), compared([b], [a])

    for name in ("ttft_p90", "e2e_p90"):
        assert math.isinf(row(found, name)["ratio"])
        assert row(found, name)["verdict"] == "worse"
        assert row(back, name)["verdict"] == "better"
    assert row(found, "tpot_p50")["ratio"] == pytest.approx(1, rel=0.1)  # of right answers alone
    assert row(found, "throughput")["ratio"] == pytest.approx(0.8, rel=0.03)


def test_a_rate_whose_error_nobody_knows_is_judged_by_the_spread_of_runs() -> None:
    one = compared([closed(1, 100, 40)], [closed(2, 150, 40)], figures=("tokens",))
    runs = [[closed(n, gap_ms + n, 40) for n in range(4)] for gap_ms in (100, 150)]

    assert one.undecided == (
        "tokens is undecided: too few values for an interval; give more or longer runs, or leave it out of "
        "--figures",
    )
    several = row(compared(*runs, figures=("tokens",)), "tokens")
    assert several["verdict"] == "worse"
    assert several["ratio_low"] < 101.5 / 151.5 < several["ratio_high"]
    unknown, known = RateAnswer(10.0, None, None, Method.COUNTED.value), RateAnswer(10.0, 9.9, 10.1, "")
    assert compare_rates([unknown], [known], threshold=0.5).verdict is Verdict.UNDECIDED


def test_tokens_that_nobody_counts_are_not_compared() -> None:
    a, b = (generated(seed, tokens_by="") for seed in (1, 2))
    unknown = [replace(each, streams=replace(each.streams, output_tokens=each.streams.output_tokens * 0 - 1))
               for each in (a, b)]  # fmt: skip

    found = compared(unknown[:1], unknown[1:])

    assert [each["figure"] for each in found.rows] == [
        "ttft_p50",
        "ttft_p90",
        "e2e_p50",
        "e2e_p90",
        "throughput",
    ]
    with pytest.raises(ConfigurationError, match="tpot_p50 is not a figure of these evaluations"):
        compared(unknown[:1], unknown[1:], figures=("tpot_p50",))


def test_goodput_needs_equal_bounds() -> None:
    a, b = generated(1, options=BOUNDS), generated(2, options=BOUNDS | {"ttft_bound_ms": 80.0})

    found = compared([a], [b])

    assert "goodput" not in {each["figure"] for each in found.rows}
    assert "differs: ttft bound (ms): 70.0 (A), 80.0 (B)" in found.notes
    with pytest.raises(
        ConfigurationError, match=r"goodput is not a figure of these .* tokens, throughput and other"
    ):
        compared([a], [b], figures=("goodput",))


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (
            generated(1, run={"rate_qps": 5.0}),
            generated(2),
            "A has load constant at 5 requests/s and B constant at 10 requests/s, so",
        ),
        (closed(1, 100), generated(1), "A has load closed loop, 1 in flight and B constant at 10 requests/s"),
        (closed(1, 100), closed(1, 100, users=2), "1 in flight and B closed loop, 2 in flight"),
        (
            generated(1, run={"source": "bursts:on_s=1,off_s=1"}, options={"duration_s": 5.0}),
            generated(1, run={"source": "bursts:on_s=1,off_s=1"}, options={"duration_s": 9.0}),
            "at 10 requests/s (duration 5.0 s, max queries none) and B",
        ),
        (
            generated(1, run={"checksum": "sha256:" + "1" * 64}, options={"replay": "t.jsonl"}),
            generated(1, run={"checksum": "sha256:" + "2" * 64}, options={"replay": "t.jsonl"}),
            "A has load trace sha256:111111111111 at 10 requests/s and B trace sha256:222222222222",
        ),
        (
            generated(1),
            generated(2, run={"invalid": "lag"}),
            "is INVALID: lag; its figures cannot be trusted",
        ),
        (generated(1), generated(2, run={"stopped": "the backlog grew"}), "was stopped: the backlog grew"),
    ],
)
def test_what_answers_another_question_or_none_is_refused(
    a: GenerationMeasurement, b: GenerationMeasurement, said: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        compared([a], [b])
    assert said in str(refused.value)


def test_an_interrupted_run_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is interrupted: its figures cover only a part"):
        Side("A", (evaluated(generated(1), status=Status.INTERRUPTED),))


def test_other_prompts_and_answers_are_told() -> None:
    other = {
        "output_tokens": 16,
        "prompt_tokens": "uniform:min=1,max=9",
        "temperature": 0.5,
        "ignore_eos": True,
    }
    a = generated(1, options={"prompt_tokens": 64})
    b = generated(2, tokens_by="the tokenizer", options=other | {"endpoint": "completions", "seed": 7})

    found = [note for note in compared([a], [b]).notes if note.startswith("differs")]

    assert found == [
        "differs: endpoint: chat (A), completions (B)",
        "differs: prompt tokens: 64 (A), uniform:min=1,max=9 (B)",
        "differs: output tokens: 32 (A), 16 (B)",
        "differs: ignore eos: false (A), true (B)",
        "differs: temperature: 0.0 (A), 0.5 (B)",
        "differs: tokens counted by: the server (A), the tokenizer (B)",
    ]
    assert not list(side("A", generated(1, options={})).differences(side("B", a)))


def test_seeds_are_no_condition_but_the_load_is() -> None:
    runs = [generated(seed, count=100) for seed in (1, 2, 3)]

    assert list(side("A", *runs[:2]).differing(side("B", *runs[1:]))) == []
    with pytest.raises(ConfigurationError, match="A mixes evaluations with load closed loop, 1 in flight"):
        side("A", closed(1, 100), closed(1, 100, users=2))


def test_noise_is_the_threshold_of_each_figure() -> None:
    noise = side("noise", generated(5), generated(6, 1.1))
    figures = ("ttft_p50", "tpot_p50", "throughput")

    found = compared([generated(1)], [generated(2)], noise=noise, figures=figures)

    assert row(found, "ttft_p50")["threshold"] == pytest.approx(0.1, abs=0.04)
    assert row(found, "throughput")["threshold"] < 0.05
    without = side("noise", *(generated(seed, options={}) for seed in (5, 6)))
    bounded_runs = [[generated(seed, options=BOUNDS)] for seed in (1, 2)]
    with pytest.raises(ConfigurationError, match=r"noise: evaluation .* has no such rate"):
        compared(*bounded_runs, noise=without, figures=("goodput",))


def test_the_page_compares_them_too() -> None:
    found = comparison_document(side("A", generated(1)), side("B", generated(2, 1.5)))

    assert found["error"] is None
    assert found["worse"]
    assert found["differs"] == []
    assert found["chart"] is None


def searched(rate: float, *, ttft_ms: float = 450.0, name: str = "TTFT", **changes: Any) -> Evaluation:
    """One bound of a search with two: the answer for both is the same."""
    found = bounded(make_evaluation(), name)
    bounds = {"TTFT": ttft_ms, "TPOT": 40.0}
    [other] = {"TTFT", "TPOT"} - {name}
    options = replace(found.measurement.options, percentile=95.0, latency_bound_ms=bounds[name])
    measurement = replace(
        found.measurement,
        options=options,
        others=(f"{other} p95 <= {bounds[other]:g} ms",),
        answer=RateAnswer(rate, rate / 1.02, rate * 1.02, Method.LATE_FRACTION.value),
    )
    return replace(found, id=str(uuid.uuid4()), measurement=measurement, **changes)


def search(name: str, rate: float, **changes: Any) -> Side:
    group_id = str(uuid.uuid4())
    return Side(
        name, tuple(searched(rate, name=each, group_id=group_id, **changes) for each in ("TTFT", "TPOT"))
    )


def test_the_rate_that_keeps_all_bounds_counts_once_for_each_search() -> None:
    found = compare(ComparisonRequest(a=search("A", 10.0), b=search("B", 8.0)))
    alone = compare(
        ComparisonRequest(a=Side("A", (searched(10.0),)), b=Side("B", (searched(8.0, name="TPOT"),)))
    )

    [one], [same] = found.rows, alone.rows
    assert (one["figure"], one["unit"], one["verdict"]) == ("max_qps", "requests/s", "worse")
    assert (one["a"], one["b"]) == (pytest.approx(10), pytest.approx(8))
    assert one["ratio_high"] == pytest.approx(0.8 * 1.02 ** math.sqrt(2))  # of two searches, not of four
    assert one == same
    assert not [note for note in found.notes if note.startswith("differs")]


def test_searches_of_one_group_with_equal_answers_count_each() -> None:
    begun = make_evaluation().created_at
    group = [
        searched(10.0, name=name, group_id="1", created_at=begun + timedelta(minutes=minutes))
        for minutes in (0, 5)
        for name in ("TTFT", "TPOT")
    ]

    assert len(Side("A", tuple(group)).rates["max_qps"]) == 2


def test_searches_with_other_bounds_answer_another_question() -> None:
    with pytest.raises(ConfigurationError) as refused:
        compare(ComparisonRequest(a=search("A", 10.0), b=search("B", 8.0, ttft_ms=900.0)))
    one, other = (f"TPOT p95 <= 40 ms and TTFT p95 <= {bound} ms" for bound in (450, 900))
    assert f"A has latency bound {one} and B {other}, so their figures answer" in str(refused.value)
    with pytest.raises(ConfigurationError, match="ttft_p50 is not a figure of searches"):
        compare(ComparisonRequest(a=search("A", 10.0), b=search("B", 8.0), figures=("ttft_p50",)))


def test_noise_takes_two_searches_and_not_two_bounds() -> None:
    one, other = search("noise", 9.0), search("noise", 10.0)
    sides = {"a": search("A", 10.0), "b": search("B", 9.5)}

    with pytest.raises(ConfigurationError, match="has 1 run; give at least two of the same system"):
        compare(ComparisonRequest(**sides, noise=one))
    both = Side("noise", (*one.evaluations, *other.evaluations))
    [found] = compare(ComparisonRequest(**sides, noise=both)).rows
    assert found["threshold"] == pytest.approx(10 / 9 - 1)
    assert found["verdict"] == "same"
