"""The intervals of generated answers contain the truth in at least 90 of 100 simulated runs."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from inferometer.evaluators.kinds.generation.measurement import GenerationSummary
from tests.generated_answers import CHUNKS, MS, TOKENS, answer, measured

RUNS, REQUESTS, GAP_MS, MANY = 100, 300, 100.0, 200_000
SHAPE = 0.3**-2
"""Of the gamma distributions of times: a coefficient of variation of 0.3."""
BOUNDS = {"ttft_bound_ms": 55.0, "tpot_bound_ms": 4.0}
FIGURES = {"mean": np.mean, "p50": np.median, "p90": lambda values: np.percentile(values, 90)}


def drawn(seed, count, queue):
    """The TTFT and the gap of each request in ms; in a queue, a server answers one after the other."""
    random = np.random.default_rng(seed)
    first_ms, gap_ms = (mean * random.gamma(SHAPE, 1 / SHAPE, count) for mean in (50.0, 8.0))
    if queue:
        late_ms = np.cumsum(first_ms + (CHUNKS - 1) * gap_ms - GAP_MS)  # Lindley's recursion
        before_ms = np.concatenate(([0.0], late_ms[:-1]))
        first_ms = first_ms + before_ms - np.minimum.accumulate(before_ms)
    return first_ms, gap_ms


def truths(queue):
    first_ms, gap_ms = drawn(1_000, MANY, queue)
    times = {
        "ttft": first_ms,
        "tpot": (CHUNKS - 1) * gap_ms / (TOKENS - 1),
        "icl": gap_ms,
        "e2e": first_ms + (CHUNKS - 1) * gap_ms + 2,
    }
    kept = np.mean((times["ttft"] <= BOUNDS["ttft_bound_ms"]) & (times["tpot"] <= BOUNDS["tpot_bound_ms"]))
    rate = 1e3 / GAP_MS
    rates = {"requests": rate, "output_tokens": TOKENS * rate, "goodput": kept * rate}
    return {(name, each): of(ms) for name, ms in times.items() for each, of in FIGURES.items()} | rates


def intervals(summary):
    for name in ("ttft", "tpot", "icl", "e2e"):
        for each in FIGURES:
            ends = getattr(getattr(summary, name), f"{each}_interval_ns")
            yield (name, each), ends and [np.inf if end is None else end / 1e6 for end in ends]
    for name in ("requests", "output_tokens", "goodput"):
        yield name, getattr(summary, name).interval


@pytest.mark.parametrize("queue", [False, True], ids=["independent", "queue"])
def test_intervals_contain_the_truth(queue):
    truth, given, covered = truths(queue), Counter(), Counter()
    for seed in range(RUNS):
        times_ms = zip(*drawn(seed, REQUESTS, queue), strict=True)
        answers = [answer(GAP_MS * place, *each) for place, each in enumerate(times_ms)]
        run = measured(answers, gap_ms=GAP_MS, cut_ms=GAP_MS * REQUESTS / 10, options=BOUNDS)
        for figure, ends in intervals(GenerationSummary(run)):
            if ends is not None:
                given[figure] += 1
                covered[figure] += ends[0] <= truth[figure] <= ends[1]

    assert set(given) == set(truth)
    assert min(given.values()) >= 0.9 * RUNS
    assert {name: covered[name] / given[name] for name in truth if covered[name] < 0.9 * given[name]} == {}


@pytest.mark.parametrize("answer_ms", [200, 2_000])
def test_intervals_of_rates_contain_the_truth_if_requests_come_at_random(answer_ms):
    """5 requests/s for 30 s, whose answers take up to the length of a part."""
    covered = Counter()
    for seed in range(RUNS):
        random = np.random.default_rng(seed)
        due_ms = np.cumsum(random.exponential(200, 400))
        due_ms = due_ms[due_ms < 30_000]
        gaps_ms = answer_ms / CHUNKS * random.gamma(SHAPE, 1 / SHAPE, len(due_ms))
        run = measured([answer(due, gap, gap) for due, gap in zip(due_ms, gaps_ms, strict=True)])
        queries = replace(run.run.queries, scheduled_ns=np.round(due_ms * MS).astype(np.int64))
        run = replace(run, run=replace(run.run, queries=queries, cut_ns=3_000 * MS))
        summary = GenerationSummary(run)
        covered["requests"] += summary.requests.interval.covers(5)
        covered["tokens"] += summary.output_tokens.interval.covers(5 * TOKENS)

    assert min(covered.values()) >= 0.9 * RUNS, covered
