"""The figures of generated answers, computed independently from known times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferometer.evaluators.kinds.generation.job import generation_job
from inferometer.evaluators.kinds.generation.measurement import (
    GenerationMeasurement,
    GenerationSummary,
    Times,
)
from inferometer.evaluators.kinds.generation.request import GenerationRequest
from inferometer.evaluators.load.queries import Outcome, Stop
from inferometer.evaluators.load.streams import Answer, Streams
from inferometer.evaluators.statistics import NEVER_NS
from inferometer.manifests.errors import ConfigurationError
from tests.generated_answers import MS, answer, measured, sixty

GOOD = [n for n in range(6, 60) if n not in {20, 30, 40}]
"""The requests of ``sixty`` with a right answer and content, after the empty start."""


def ms(times: Times, name: str) -> float:
    return getattr(times, f"{name}_ns") / MS


def test_times_are_those_of_the_requests_after_the_empty_start() -> None:
    summary = GenerationSummary(sixty())
    ttft = [50 + n % 10 for n in GOOD]
    gaps = [8 + 0.1 * (n % 7) for n in GOOD]

    assert summary.outcomes == {"waiting": 0, "answered": 52, "failed": 1, "timed_out": 1}
    assert ms(summary.ttft, "mean") == pytest.approx(np.mean(ttft))
    with_never = [*ttft, math.inf, math.inf]  # failed and timed out; an answer without content does not count
    assert summary.ttft.count == len(with_never) == 53
    assert ms(summary.ttft, "p50") == pytest.approx(sorted(with_never)[26])
    assert ms(summary.tpot, "mean") == pytest.approx(np.mean([4 * gap / 9 for gap in gaps]), abs=1e-6)
    assert ms(summary.icl, "mean") == pytest.approx(np.mean(gaps), abs=1e-6)
    assert summary.icl.count == len(GOOD)
    whole = [first + 4 * gap + 2 for first, gap in zip(ttft, gaps, strict=True)]
    assert ms(summary.e2e, "mean") == pytest.approx(np.mean([*whole, 60]), abs=1e-6)
    visible = [first + gap for first, gap in zip(ttft, gaps, strict=True)]
    assert ms(summary.ttfo, "mean") == pytest.approx(np.mean(visible), abs=1e-6)
    assert summary.without_content == 1
    assert summary.ttft.p99_ns is None  # of too few requests
    assert summary.ttft.p90_ns is not None
    assert summary.ttft.p90_interval_ns is None


def test_bounds_decide_the_goodput() -> None:
    summary = GenerationSummary(sixty())
    kept = [n for n in GOOD if 50 + n % 10 <= 57 and 4 * (8 + 0.1 * (n % 7)) / 9 <= 3.8]

    assert summary.kept_share == pytest.approx(len(kept) / 54)
    assert summary.goodput.per_s == pytest.approx(len(kept) / 5.3, rel=0.05)  # from 0.6 s to 5.9 s
    assert GenerationSummary(sixty(options={})).kept is None
    unknown = GenerationSummary(sixty(tokens_by=""))
    assert (unknown.kept, unknown.output_tokens.per_s, unknown.whole_tokens_per_s) == (None, None, None)


def test_a_server_that_fails_every_request_has_rates_of_nothing() -> None:
    """Refused at once, as of a server that is down."""
    found = measured(
        [Answer(error="refused", last_byte_ns=(5_000 + 100 * n) * MS) for n in range(60)],
        [Outcome.FAILED] * 60,
        cut_ms=600,
        options={"ttft_bound_ms": 57.0},
    )
    summary = GenerationSummary(found)

    rates = (summary.requests, summary.goodput, summary.output_tokens)
    assert [each.per_s for each in rates] == [0, 0, 0]
    assert [each.interval for each in rates] == [None] * 3
    assert summary.kept_share == 0


def test_tokens_count_over_the_run_and_in_the_steady_window() -> None:
    summary = GenerationSummary(measured([answer(100 * n, 30, 10) for n in range(200)], cut_ms=2000))

    # the first request is due at 0, the last byte arrives 72 ms after the last one is due
    assert summary.whole_tokens_per_s == pytest.approx(200 * 10 / (19.9 + 0.072))
    assert summary.output_tokens.per_s == pytest.approx(100, rel=0.01)
    assert summary.output_tokens.interval is not None
    assert summary.output_tokens.interval.covers(100)
    assert summary.requests.per_s == pytest.approx(10, rel=0.01)
    assert summary.shorter == 180
    assert summary.tokens("planned_tokens")["planned_tokens"] == 12


@pytest.mark.parametrize(
    ("cached", "options", "knew"),
    [
        ([63] * 60, {}, True),
        ([63] * 31 + [4] * 29, {}, True),
        ([63] * 29 + [4] * 31, {}, False),
        ([-1] * 59 + [63], {}, True),
        ([-1] * 60, {}, False),
        ([47] * 60, {"prefix_share": 0.5}, False),
        ([49] * 60, {"prefix_share": 0.5}, True),
        ([63] * 60, {"prompts": "their own"}, False),
        ([63] * 60, {"replay": "a trace"}, False),
    ],
)
def test_prompts_that_a_cache_has_from_before_are_noticed(
    cached: list[int], options: dict[str, Any], knew: bool
) -> None:
    answers = [answer(100 * n, 20, 4, cached_tokens=each) for n, each in enumerate(cached)]

    assert GenerationSummary(measured(answers, options=options)).knew_prompts is knew
    for each in answers:
        each.input_tokens = -1
    assert not GenerationSummary(measured(answers, options=options)).knew_prompts


def test_numbers_of_tokens_have_a_mean_and_percentiles_over_right_answers_that_tell() -> None:
    told = [answer(100 * n, 20, 4, input_tokens=-1 if n == 9 else 10 * n) for n in range(10)]
    outcomes = [Outcome.FAILED, *[Outcome.ANSWERED] * 9]

    found = GenerationSummary(measured(told, outcomes)).tokens("input_tokens")

    names = ("input_tokens", "input_tokens_p50", "input_tokens_p90", "input_tokens_p99")  # of 10, 20 … 80
    assert found == dict(zip(names, (45, 45, 73, pytest.approx(79.3)), strict=True))


@pytest.mark.parametrize("chunks", [1, 5, 40])
@pytest.mark.parametrize("cut_ms", [600, 1_250, 3_000])
def test_rates_are_those_of_the_server_however_long_an_answer_takes(chunks: int, cut_ms: float) -> None:
    """An answer of 40 chunks takes 4 s of a run of 12 s."""
    answers = [answer(100 * n, 93, 97.3, chunks=chunks) for n in range(120)]
    summary = GenerationSummary(measured(answers, cut_ms=cut_ms, options={"e2e_bound_ms": 9e3}))

    for rate, truth in ((summary.requests, 10), (summary.goodput, 10), (summary.output_tokens, 20 * chunks)):
        assert rate.per_s == pytest.approx(truth, rel=0.02)
        assert (rate.interval is None) is (chunks == 40)  # its answers take longer than a tenth of the rest
        if rate.interval is not None:
            assert rate.interval.low * 0.99 < truth < rate.interval.high * 1.01  # equal parts have no width
            assert rate.interval.high - rate.interval.low < 0.1 * truth


@pytest.mark.parametrize("chunks", [1, 5])
@pytest.mark.parametrize("cut_ms", [700, 1_000, 1_300])
def test_requests_that_end_together_do_not_change_the_rate(chunks: int, cut_ms: float) -> None:
    """A closed loop of 8: answers take 1 s, those of a wave end 5 ms apart, and each makes the next due."""
    due_ms = [1_000 * wave + 5 * place for wave in range(9) for place in range(8)]
    answers = [answer(each, 997 - 50 * (chunks - 1), 50, chunks=chunks) for each in due_ms]
    found = measured(answers, cut_ms=cut_ms)
    queries = replace(found.run.queries, scheduled_ns=np.array(due_ms) * MS)
    summary = GenerationSummary(replace(found, run=replace(found.run, queries=queries)))

    assert summary.requests.per_s == pytest.approx(8, rel=0.02)


def test_a_run_of_one_request_for_each_in_flight_has_no_rate() -> None:
    found = measured([answer(0.001 * n, 100, 10) for n in range(8)], gap_ms=0.001, cut_ms=0.001)

    assert GenerationSummary(found).requests.per_s is None


@pytest.mark.parametrize(("hangs", "p50_ms"), [(False, 100), (True, math.inf)])
def test_a_stop_on_request_is_no_failure_of_the_server(hangs: bool, p50_ms: float) -> None:
    """At 10 requests/s, a stop after 20 s finds 30 requests without the answers that take 3 s, or 140."""
    answers = [answer(100 * n, 100, 97) if n < (60 if hangs else 170) else Answer() for n in range(200)]
    answers = [
        replace(each, last_byte_ns=each.last_byte_ns + 2_500 * MS * bool(each.chunks)) for each in answers
    ]
    outcomes = [Outcome.ANSWERED if each.chunks else Outcome.WAITING for each in answers]
    found = measured(answers, outcomes, cut_ms=2_000)
    stopped = replace(found, run=replace(found.run, stopped=Stop.INTERRUPTED.value))

    summary = GenerationSummary(stopped)
    assert ms(summary.ttft, "p50") == p50_ms
    assert ms(summary.ttft, "p90") == (math.inf if hangs else 100)
    assert 28 <= np.count_nonzero(summary.cut_off) <= 31
    assert hangs or summary.requests.per_s == pytest.approx(10, rel=0.02)
    assert summary.outcomes["waiting"] == (110 if hangs else 0)


def test_one_chunk_and_one_token_have_no_time_per_token() -> None:
    alike = [answer(100 * n, 30, 10, chunks=1, reasoning=0) for n in range(30)]
    alike += [answer(100 * n, 30, 10, chunks=2, output_tokens=1) for n in range(30, 60)]
    summary = GenerationSummary(measured(alike))

    assert (summary.tpot.count, summary.tpot.mean_ns, summary.tpot.p50_ns) == (0, None, None)


def test_a_percentile_on_requests_without_an_answer_is_never() -> None:
    times = Times.of(np.array([5] * 10 + [NEVER_NS] * 30), 40)

    assert times.p50_ns == math.inf
    assert times.mean_ns == 5


def test_the_answers_of_one_request_are_not_enough_for_a_percentile() -> None:
    assert Times.of(np.arange(1000), 1) == Times(1, mean_ns=499.5)


@pytest.mark.parametrize(("requests", "given"), [(99, False), (100, True)])
def test_the_mean_of_few_requests_has_no_interval(requests: int, given: bool) -> None:
    times = Times.of(np.resize([1, 9], requests), requests)

    assert (times.mean_interval_ns is not None, times.p50_interval_ns is not None) == (given, True)


def test_intervals_cover_the_truth() -> None:
    """Over 200 runs of 300 requests, at least 90 % of the intervals of each figure cover the truth."""
    random, hits = np.random.default_rng(0), np.zeros(3)
    for _ in range(200):
        times = Times.of((random.gamma(4, 10 * MS, 300)).astype(np.int64), 300)
        truths = {"mean": 40, "p50": 36.7206, "p90": 66.8078}
        for place, (name, truth) in enumerate(truths.items()):
            low, high = getattr(times, f"{name}_interval_ns")
            hits[place] += low <= truth * MS <= (math.inf if high is None else high)

    assert (hits >= 180).all(), hits


@pytest.mark.parametrize(("lag_ms", "invalid"), [(0.2, False), (40, True)])
def test_a_lag_of_the_sender_makes_the_run_invalid(lag_ms: float, invalid: bool) -> None:
    answers = [answer(100 * n, 45, 8) for n in range(60)]

    found = measured(answers, lag_ms=lag_ms)

    assert bool(found.run.invalid) is invalid
    assert ("the TTFT's p90 would be 5.000 ms, not 45.000 ms: stop" in found.run.invalid) is invalid
    assert "threads" not in found.run.invalid  # which a served model does not take


def test_an_answer_that_proves_wrong_has_failed() -> None:
    found = measured([answer(0, 5, 1), answer(100, 5, 1, error="overload")])

    assert found.run.queries.outcome.tolist() == [Outcome.ANSWERED, Outcome.FAILED]
    assert found.run.reasons == {"overload": 1}


def test_answers_are_stored_in_parts_and_joined() -> None:
    answers = [answer(0, 5, 1, chunks=n % 3) if n % 3 else Answer() for n in range(12_000)]
    streams = Streams.of(answers, [3] * 12_000, 0)

    parts = list(streams.parts())
    joined = Streams.joined(parts)

    assert [len(part["finish"]) for part in parts] == [5000, 5000, 2000]
    for name in Streams.__dataclass_fields__:
        assert list(getattr(joined, name)) == list(getattr(streams, name)), name
    before = [{name: part[name] for name in part if name != "cached_tokens"} for part in parts]
    assert list(Streams.joined(before).cached_tokens) == [-1] * 12_000
    with pytest.raises(ValueError, match="different lengths"):
        Streams.joined([{**parts[0], "chunk_ns": parts[0]["chunk_ns"][1:]}])


def test_the_options_of_a_measurement_have_its_bounds() -> None:
    found: GenerationMeasurement = sixty()
    options: Mapping[str, Any] = found.options

    assert found.bound_ns("ttft_bound_ms") == options["ttft_bound_ms"] * MS
    assert found.bound_ns("e2e_bound_ms") is None


@pytest.mark.parametrize(
    ("given", "requests"),
    [
        ({"rate_qps": 10, "duration_s": 1, "max_queries": 100}, 10),
        ({"rate_qps": 10, "duration_s": 100, "max_queries": 5}, 5),
        ({"rate_qps": 10, "max_queries": 7}, 7),
        ({"rate_qps": 2}, 60),
    ],
)
def test_a_run_ends_with_its_duration_or_its_requests(given: Mapping[str, Any], requests: int) -> None:
    job = generation_job(GenerationRequest(agent="openai+http://h:1", arrival="constant", **given))

    [work] = job.run.args[1]  # type: ignore[attr-defined]
    assert len(work) == pytest.approx(requests, abs=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"concurrency": 2, "rate_qps": 1}, "leave out rate"),
        ({"concurrency": 2, "arrival": "poisson"}, "leave out arrival"),
        ({"prompts": "p.jsonl", "prompt_tokens": 3}, "prompts has the prompts; leave out prompt_tokens"),
        ({"prompts": "p.jsonl", "replay": "t.jsonl"}, "prompts has the prompts; leave out replay"),
        ({"replay": "t.jsonl", "prefix_share": 0.5}, "replay has the prompts; leave out prefix_share"),
        ({"replay": "t.jsonl", "arrival": "constant"}, "replay has its times; leave out arrival"),
        ({"prefixes": 3}, "prefixes needs prefix_share; give it too"),
        ({"think_time_s": 1.0}, "think_time needs concurrency, or prompts with turns"),
        ({"saturate": True, "rate_qps": 1.0}, "saturate needs concurrency; give it too"),
        ({"scenario": "offline"}, "scenario offline sends all requests at once; give max_queries"),
        ({"scenario": "offline", "max_queries": 9, "concurrency": 2}, "leave out concurrency and rate"),
        ({"scenario": "offline", "max_queries": 9, "rate_qps": 2.0}, "leave out concurrency and rate"),
        ({"prefix_share": 1.5}, "prefix_share is 1.5; it must be at least 0 and at most 1"),
        ({"output_tokens": 0}, "output_tokens is 0; it must be at least 1"),
        ({"prompt_tokens": 1.5}, "prompt_tokens is 1.5; it must be a whole number or text"),
        ({"prompt_tokens": True}, "prompt_tokens is True; it must be a whole number or text"),
        ({"temperature": -1.0}, "temperature is -1.0; it must be at least 0"),
        ({"endpoint": "embeddings"}, 'unknown endpoint "embeddings"'),
    ],
)
def test_options_that_exclude_each_other_are_refused(given: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        GenerationRequest(agent="openai+http://h:1", **given)
