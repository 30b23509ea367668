"""``agent measure generation`` against a server with known times: every figure beside the truth."""

import statistics
from itertools import chain

import numpy as np
import pytest

import inferometer
from inferometer.evaluators.kinds.generation.measurement import GenerationSummary
from inferometer.evaluators.load.queries import Outcome
from tests.integration.generation_truth import serving, truth_of

RATE, COUNT, TOKENS = 43.0, 70, 14
"""At this rate no request is sent at the time at which the first chunk of another comes."""
FIGURES = {
    "mean": statistics.fmean,
    "p50": statistics.median,
    "p90": lambda values: np.percentile(values, 90),
}


def measured(server, **options):
    """The measurement of a run, and what the server sent for each of its requests."""
    load = {} if "concurrency" in options else {"rate_qps": RATE, "arrival": "constant"}
    given = {"max_queries": COUNT, "output_tokens": TOKENS, "prompt_tokens": 10, **load, **options}
    agent = f"openai+http://{server.address}"
    found = inferometer.measure("generation", agent=agent, publish=False, **given).measurement
    sent = server.sent()[-len(found.run.queries) :]
    assert [each.body["max_tokens"] for each in sent] == [TOKENS] * len(sent)
    return found, sent


def truths(found, sent):
    """The truth of each counted request with a right answer."""
    due_ns = found.run.began_ns + found.run.queries.scheduled_ns
    chosen = found.run.queries.scheduled_ns >= found.run.cut_ns
    return [
        truth_of(each, due)
        for each, due, counts in zip(sent, due_ns.tolist(), chosen, strict=True)
        if counts and each.end in {"length", "stop"}
    ]


def assert_right(times, values_ms):
    """Each figure is within 1 % or 0.2 ms of the truth."""
    for name, figure in FIGURES.items():
        truth_ms = float(figure(values_ms))
        assert getattr(times, f"{name}_ns") / 1e6 == pytest.approx(truth_ms, rel=0.01, abs=0.2), name


CASES = {
    "tokens": ({}, {}),
    "threes, completions": ({"chunk": 3}, {"endpoint": "completions"}),
    "sevens, no role": ({"chunk": 7, "role": False}, {}),
    "reasoning, slow start": ({"chunk": 3, "reasoning": 6, "slow_start": 20}, {}),
    "split, comments": ({"chunk": 3, "split_ms": 1, "crlf": True, "closes": True}, {}),
    "a queue": ({"chunk": 3, "first_ms": 20, "parallel": 3}, {}),
    "stops early, spread": ({"chunk": 3, "most_tokens": 8, "spread": 0.3}, {"arrival": "poisson"}),
    "closed loop": ({"chunk": 3}, {"concurrency": 2}),
}


@pytest.mark.real_time
@pytest.mark.parametrize(("behaviour", "options"), CASES.values(), ids=CASES)
def test_every_figure_is_the_truth(behaviour, options):
    with serving(**behaviour) as server:
        found, sent = measured(server, **options)
    summary, expected = GenerationSummary(found), truths(found, sent)

    assert summary.ttft.count == len(expected) == np.count_nonzero(summary.counted)
    assert_right(summary.ttft, [each.ttft_ms for each in expected])
    assert_right(summary.ttfo, [each.ttfo_ms for each in expected])
    assert_right(summary.tpot, [each.tpot_ms for each in expected])
    assert_right(summary.icl, list(chain(*(each.gaps_ms for each in expected))))
    assert_right(summary.e2e, [each.e2e_ms for each in expected])
    assert summary.tokens("output_tokens")["output_tokens"] == statistics.fmean(
        each.tokens for each in expected
    )
    assert summary.tokens("input_tokens")["input_tokens"] == 10
    assert found.streams.chunk_count.tolist() == [len(each.chunks) for each in sent]
    characters = [len(text) for each in sent for _, _, text in each.chunks]
    assert found.streams.chunk_characters.tolist() == characters
    due_ns = found.run.began_ns + found.run.queries.scheduled_ns
    early = due_ns < found.run.began_ns + found.run.cut_ns
    end_ns = due_ns[-1]
    begin_ns = max(
        due_ns[~early][0], *(each.last_ns for each, is_early in zip(sent, early, strict=True) if is_early)
    )
    window_s = (end_ns - begin_ns) / 1e9
    shares = [[begin_ns < when <= end_ns for when, _, _ in each.chunks] for each in sent]
    answers = sum(map(statistics.fmean, shares))
    tokens = sum(each.tokens * statistics.fmean(share) for each, share in zip(sent, shares, strict=True))
    assert summary.requests.per_s == pytest.approx(answers / window_s, rel=0.02)
    assert summary.output_tokens.per_s == pytest.approx(tokens / window_s, rel=0.02)
    begun_ns = due_ns[0]
    whole_s = (max(each.last_ns for each in sent) - begun_ns) / 1e9
    assert summary.whole_tokens_per_s == pytest.approx(sum(each.tokens for each in sent) / whole_s, rel=0.01)


@pytest.mark.real_time
@pytest.mark.parametrize("breaks", ["error", "cut"])
def test_what_breaks_is_counted_and_is_in_no_time(breaks, tmp_path):
    prompts = tmp_path / "prompts.jsonl"  # which need no requests that find out the number of their words
    prompts.write_text('{"prompt": "one two three"}\n')
    with serving(breaks=breaks, every=8, chunk=3) as server:
        found, sent = measured(server, prompts=prompts, prompt_tokens=None)
    summary, expected = GenerationSummary(found), truths(found, sent)
    broken = [each.end == breaks for each in sent]

    assert 8 <= sum(broken) <= 9
    assert (found.run.queries.outcome == Outcome.FAILED).tolist() == broken
    assert_right(summary.tpot, [each.tpot_ms for each in expected])
    values_ms = [each.ttft_ms for each in expected]
    assert summary.ttft.mean_ns / 1e6 == pytest.approx(statistics.fmean(values_ms), abs=0.5)


@pytest.mark.real_time
def test_goodput_is_of_the_requests_that_keep_every_bound():
    with serving(spread=0.3, chunk=3) as server:
        found, sent = measured(server, ttft_bound_ms=52, tpot_bound_ms=3.5)
    expected = truths(found, sent)
    kept = [each for each in expected if each.ttft_ms <= 52 and each.tpot_ms <= 3.5]
    near = [
        each for each in expected if abs(each.ttft_ms - 52) < 0.3 or abs(each.tpot_ms - 3.5) < 0.05
    ]  # for which either answer is right

    share = GenerationSummary(found).kept_share
    assert 0 < len(kept) < len(expected)
    assert share == pytest.approx(len(kept) / len(expected), abs=(len(near) + 0.1) / len(expected))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_intervals_contain_the_truth_in_90_of_100_runs():
    """The truths are the means and medians of the gamma distributions from which the server draws."""
    ends, first_ms, token_ms = {}, 20.0, 1.0
    random = np.random.default_rng(0)
    median = np.median(random.gamma(0.3**-2, 0.3**2, 1_000_000))
    tpot_ms = token_ms * (TOKENS - 3) / (TOKENS - 1)
    truth_ms = {
        ("ttft", "mean"): first_ms,
        ("ttft", "p50"): first_ms * median,
        ("tpot", "mean"): tpot_ms,
        ("tpot", "p50"): tpot_ms * median,
    }
    with serving(first_ms=first_ms, token_ms=token_ms, spread=0.3, chunk=3) as server:
        for _ in range(100):
            summary = GenerationSummary(measured(server, rate_qps=101.0, max_queries=120)[0])
            for name, figure in truth_ms:
                interval = getattr(getattr(summary, name), f"{figure}_interval_ns")
                ends.setdefault((name, figure), []).append(interval)
    known = {figure: [each for each in found if each is not None] for figure, found in ends.items()}

    assert min(map(len, known.values())) >= 90
    for figure, intervals in known.items():
        covered = sum(low / 1e6 <= truth_ms[figure] <= high / 1e6 for low, high in intervals)
        assert covered >= 0.9 * len(intervals), (figure, covered, len(intervals))
