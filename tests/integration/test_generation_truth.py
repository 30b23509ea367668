"""``agent measure generation`` against a server with known times: every figure beside the truth."""

import statistics
from dataclasses import replace
from itertools import chain, product

import numpy as np
import pytest

import inferometer
from inferometer.evaluators.kinds.generation.measurement import GenerationSummary
from inferometer.evaluators.load.queries import Outcome
from tests.integration.generation_truth import serving, truth_of

RATE, COUNT, TOKENS = 43.0, 70, 14
"""At this rate no request is sent at the time at which the first chunk of another comes."""
WHOLE = {"length", "stop"}
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


def arrived(found, sent):
    """The same requests with the client's stamps of their chunks and last bytes, where an answer is whole."""
    streams, begun_ns = found.streams, found.run.began_ns
    stamps_ns = np.split(streams.chunk_ns + begun_ns, np.cumsum(streams.chunk_count)[:-1])
    return [
        replace(
            each,
            chunks=[(stamp, *rest) for stamp, (_, *rest) in zip(stamps.tolist(), each.chunks, strict=True)],
            last_ns=last_ns + begun_ns,
        )
        if each.end in WHOLE
        else each
        for each, stamps, last_ns in zip(sent, stamps_ns, streams.last_byte_ns.tolist(), strict=True)
    ]


def truths(found, sent):
    """The truth of each counted request with a right answer."""
    due_ns = found.run.began_ns + found.run.queries.scheduled_ns
    chosen = found.run.queries.scheduled_ns >= found.run.cut_ns
    return [
        truth_of(each, due)
        for each, due, counts in zip(sent, due_ns.tolist(), chosen, strict=True)
        if counts and each.end in WHOLE
    ]


def assert_right(times, arrived_ms, sent_ms):
    """The figures are those of the client's stamps, which agree with the server's within 1 % or 0.2 ms.

    The host may stop the client for some milliseconds, so the median judges how well they agree.
    """
    for name, figure in FIGURES.items():
        assert getattr(times, f"{name}_ns") / 1e6 == pytest.approx(float(figure(arrived_ms)), rel=1e-6), name
    off_ms = np.abs(np.subtract(arrived_ms, sent_ms))
    assert np.median(off_ms - np.maximum(0.2, 0.01 * np.array(sent_ms))) <= 0


CASES = {
    "tokens": ({}, {}),
    "threes, completions": ({"chunk": 3}, {"endpoint": "completions"}),
    "sevens, no role": ({"chunk": 7, "role": False}, {}),
    "reasoning, slow start": ({"chunk": 3, "reasoning": 6, "slow_start": 20}, {}),
    "split, comments": ({"chunk": 3, "split_ms": 1, "crlf": True, "closes": True}, {}),
    "a queue": ({"chunk": 3, "first_ms": 20, "parallel": 3}, {}),
    "stops early, spread": ({"chunk": 3, "most_tokens": 8, "spread": 0.3}, {"arrival": "poisson"}),
    "closed loop": ({"chunk": 3, "first_ms": 20, "spread": 0.3}, {"concurrency": 2}),
}


@pytest.mark.real_time
@pytest.mark.parametrize(("behaviour", "options"), CASES.values(), ids=CASES)
def test_every_figure_is_the_truth(behaviour, options):
    with serving(**behaviour) as server:
        found, sent = measured(server, **options)
    summary, expected = GenerationSummary(found), truths(found, sent)
    sent = arrived(found, sent)
    seen = truths(found, sent)

    assert summary.ttft.count == len(expected) == np.count_nonzero(summary.counted)
    for name in ("ttft", "ttfo", "tpot", "e2e"):
        assert_right(
            getattr(summary, name), *([getattr(each, f"{name}_ms") for each in of] for of in (seen, expected))
        )
    assert_right(summary.icl, *(list(chain(*(each.gaps_ms for each in of))) for of in (seen, expected)))
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
    assert summary.requests.per_s == pytest.approx(answers / window_s, rel=1e-6)
    assert summary.output_tokens.per_s == pytest.approx(tokens / window_s, rel=1e-6)
    begun_ns = due_ns[0]
    whole_s = (max(each.last_ns for each in sent) - begun_ns) / 1e9
    assert summary.whole_tokens_per_s == pytest.approx(sum(each.tokens for each in sent) / whole_s, rel=1e-6)


@pytest.mark.slow
@pytest.mark.flaky(reruns=5)
@pytest.mark.parametrize(("behaviour", "options"), CASES.values(), ids=CASES)
def test_every_figure_is_within_1_percent_of_what_the_server_did(behaviour, options):
    """On a quiet machine, the mean and the 90th percentile are, too."""
    with serving(**behaviour) as server:
        found, sent = measured(server, **options)
    summary, expected = GenerationSummary(found), truths(found, sent)
    for times, name in product(("ttft", "ttfo", "tpot", "e2e"), FIGURES):
        truth_ms = float(FIGURES[name]([getattr(each, f"{times}_ms") for each in expected]))
        found_ms = getattr(getattr(summary, times), f"{name}_ns") / 1e6
        assert found_ms == pytest.approx(truth_ms, rel=0.01, abs=0.2), (times, name)


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
    seen = truths(found, arrived(found, sent))
    assert_right(summary.tpot, *([each.tpot_ms for each in of] for of in (seen, expected)))
    values_ms = [each.ttft_ms for each in seen]
    assert summary.ttft.mean_ns / 1e6 == pytest.approx(statistics.fmean(values_ms), rel=1e-6)


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
