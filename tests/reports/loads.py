"""Evaluations under load with known query times, for the reports and plots of load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.generation.measurement import GenerationSearchMeasurement
from inferometer.evaluators.kinds.load.measurement import (
    LoadMeasurement,
    LoadOptions,
    MixMeasurement,
    MixSearchMeasurement,
    RateAnswer,
    RateSearchMeasurement,
)
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries

MS = 1_000_000
ELAPSED_NS = 2_500_000_000
OPTIONS = LoadOptions(
    "poisson",
    100.0,
    latency_bound_ms=10.0,
    timeout_ms=500.0,
    min_duration_s=2.0,
    min_queries=20,
    seed=3,
    max_batch_size=2,
    warm_up_queries=4,
)


def queries(latency_ms: Sequence[float], outcomes: Sequence[Outcome] = (), gap_ms: float = 10) -> Queries:
    """Queries that are due at equal distance; each is sent a tenth of its latency after that."""
    count = len(latency_ms)
    due = np.arange(count) * round(gap_ms * MS)
    latency = np.array([round(each * MS) for each in latency_ms], np.int64)
    outcome = np.array(outcomes or [Outcome.ANSWERED] * count, np.int64)
    settled = np.isin(outcome, (Outcome.ANSWERED, Outcome.FAILED))
    answered = outcome == Outcome.ANSWERED
    return Queries(
        scheduled_ns=due,
        sent_ns=due + latency // 10,
        done_ns=np.where(settled, due + latency, -1),
        outcome=outcome,
        queue_ns=np.where(answered, latency // 4, -1),
        predict_ns=np.where(answered, latency // 2, -1),
        batch_size=np.where(answered, 1 + (np.arange(count) % 3 != 0), 0),
        batch_ns=np.where(answered, latency // 8, -1),
    )


def run(found: Queries, rate_qps: float = 100.0) -> LoadRun:
    return LoadRun(rate_qps, "poisson", 3, f"sha256:{rate_qps:.0f}", found)


def loaded(
    evaluation: Evaluation, number: int, measurement: LoadMeasurement | RateSearchMeasurement | MixMeasurement
) -> Evaluation:
    """The evaluation as one under load: without a trace."""
    return replace(
        evaluation,
        id=f"{number:08d}-0000-4000-8000-000000000000",
        measurement=measurement,
        trace_level=TraceLevel.NO_TRACE,
        trace=None,
        spans=(),
    )


def calm(evaluation: Evaluation) -> Evaluation:
    """1,200 queries of 1…12 ms, the first of which are the empty start; some are answered twice."""
    found = replace(queries([1 + n * 7 % 12 for n in range(1200)]), repeated=2)
    options = replace(OPTIONS, percentile=97.0)
    return loaded(evaluation, 1, LoadMeasurement(options, replace(run(found), cut_ns=1_200 * MS), ELAPSED_NS))


def overloaded(evaluation: Evaluation) -> Evaluation:
    """A run without a bound that was stopped and is invalid, with queries of every outcome."""
    outcomes = [*[Outcome.ANSWERED] * 6, *[Outcome.FAILED] * 3, *[Outcome.TIMED_OUT] * 2, Outcome.WAITING]
    found = replace(
        run(queries([5.0, 50, 100, 150, 200, 250, 1, 1, 1, 1, 1, 1], outcomes)),
        stopped="the backlog grew without end",
        invalid="p99 of the harness's own lag is 22 ms, and 1 ms is allowed",
        reasons={"the queue is full": 2, "no memory": 1},
    )
    return loaded(evaluation, 2, LoadMeasurement(replace(OPTIONS, latency_bound_ms=None), found, ELAPSED_NS))


def closed(evaluation: Evaluation) -> Evaluation:
    """A closed loop: no rate, no seed, no schedule."""
    options = replace(OPTIONS, arrival="closed loop, 4 in flight", rate_qps=0.0, concurrency=4)
    found = LoadRun(0.0, "closed loop, 4 in flight", None, "", queries([2.0] * 40))
    return loaded(evaluation, 3, LoadMeasurement(options, found, ELAPSED_NS))


SEARCH = replace(OPTIONS, time_budget_s=60.0, tolerance=0.02)


def searched(evaluation: Evaluation) -> Evaluation:
    """A search with an answer: a whole probe, one that was stopped and one that is invalid."""
    late = [Outcome.ANSWERED] * 30 + [Outcome.WAITING] * 30
    runs = (
        run(queries([1 + n % 8 for n in range(1400)]), 100.0),
        replace(
            run(queries([2.0 * (n + 1) for n in range(60)], late, gap_ms=1), 1000.0),
            stopped="too many queries were late",
        ),
        replace(run(queries([3.0] * 40), 120.0), invalid="the machine was too busy"),
    )
    answer = RateAnswer(120.04, 118.7, 121.3, "single server")
    return loaded(evaluation, 4, RateSearchMeasurement(SEARCH, runs, ELAPSED_NS, answer))


def hopeless(evaluation: Evaluation) -> Evaluation:
    """A search whose answer is that there is none."""
    runs = (run(queries([20.0 + n for n in range(50)]), 10.0),)
    answer = RateAnswer(None, None, None, "none", "50 of 50 queries were late")
    return loaded(evaluation, 5, RateSearchMeasurement(SEARCH, runs, ELAPSED_NS, answer))


def unlimited(evaluation: Evaluation) -> Evaluation:
    """A search that found no rate which breaks the bound."""
    runs = (run(queries([0.5] * 50), 400.0),)
    answer = RateAnswer(400.0, 400.0, None, "at least", "the harness can issue no more than 400 queries/s")
    return loaded(evaluation, 6, RateSearchMeasurement(SEARCH, runs, ELAPSED_NS, answer))


def mix(alone: Sequence[LoadRun], together: Sequence[LoadRun], **more: Any) -> MixMeasurement:
    others, given = ("other, constant at 50 queries/s",), {"mix": "mix.yaml", "blocks": 2}
    options = replace(OPTIONS, max_duration_s=2.0, **more.pop("options", {}))
    return MixMeasurement(
        "vision",
        others,
        options,
        given,
        "- model_name: A\n",
        tuple(alone),
        tuple(together),
        ELAPSED_NS,
        **more,
    )


def slowed(evaluation: Evaluation) -> Evaluation:
    """A model that others slow down by half, so that it misses its bound."""
    alone = [run(queries([4 + n * 7 % 4 for n in range(600)])) for _ in range(2)]
    together = [run(queries([6 + n * 7 % extra for n in range(600)])) for extra in (6, 5)]
    return loaded(evaluation, 7, mix(alone, together))


def silenced(evaluation: Evaluation) -> Evaluation:
    """A model of which most queries fail together with others."""
    outcomes = [Outcome.ANSWERED] * 8 + [Outcome.FAILED] * 32
    failed = replace(run(queries([5.0] * 40, outcomes)), reasons={"no memory": 32})
    return loaded(evaluation, 8, mix([run(queries([5.0] * 40))] * 2, [failed] * 2))


def unjudged(evaluation: Evaluation) -> Evaluation:
    """A model alone in its mix, without a bound, whose figures are invalid."""
    runs = [run(queries([3.0, 4.0] * 20))]
    no_bound = {"latency_bound_ms": None, "percentile": 90.0}
    return loaded(
        evaluation, 9, replace(mix(runs, runs, options=no_bound, invalid="alone: too late"), others=())
    )


def mix_search(name: str, rate_qps: float, factors: Sequence[float], **more: Any) -> MixSearchMeasurement:
    """One model of a search, whose probes at these factors have ever longer latencies."""
    runs = tuple(
        run(queries([place + n % 8 for n in range(400)]), factor * rate_qps)
        for place, factor in enumerate(factors, 1)
    )
    return MixSearchMeasurement(
        replace(SEARCH, rate_qps=rate_qps),
        runs,
        ELAPSED_NS,
        name=name,
        others=("other, poisson at 20 queries/s",),
        mix={"mix": "mix.yaml", "time_budget_s": 60.0},
        file="- model_name: A\n",
        **more,
    )


def limiting(evaluation: Evaluation) -> Evaluation:
    """The model that limits the factor of its mix."""
    answer = RateAnswer(150.2, 145.5, 155.5, "late fraction", "torch may limit it as well")
    own = RateAnswer(150.2, 146.0, 155.5, "late fraction")
    found = mix_search("onnx", 100.0, (1, 2, 1.5), answer=answer, own=own, limited_by="onnx")
    return loaded(evaluation, 10, found)


def unlimiting(evaluation: Evaluation) -> Evaluation:
    """The model beside it, which kept its bound at all factors; the probes of the other are invalid."""
    answer = RateAnswer(30.04, 29.1, 31.1, "late fraction", "torch may limit it as well")
    own = RateAnswer(40.0, 30.4, None, "at least", "2 of 1204 queries were late at 1.52 and above")
    more = {"limited_by": "onnx", "invalid": "onnx: 2 of 3 probes near the answer are invalid"}
    return loaded(evaluation, 11, mix_search("torch", 20.0, (1, 2, 1.5), answer=answer, own=own, **more))


def interrupted(evaluation: Evaluation) -> Evaluation:
    """A model of a search that was stopped after its first probe."""
    return loaded(evaluation, 12, mix_search("onnx", 100.0, (1,)))


def bounded(evaluation: Evaluation, name: str) -> Evaluation:
    """One of the two bounds of a search for the highest rate of generated answers, which TTFT limits."""
    answer = RateAnswer(4.2, 3.9, 4.5, "late fraction", "the time budget was used up")
    own = {"TTFT": replace(answer, note=""), "TPOT": RateAnswer(8.0, 4.0, None, "at least", "none were late")}
    runs = tuple(run(queries([place + n % 8 for n in range(400)]), 2.0 * place) for place in (1, 2, 3))
    found = GenerationSearchMeasurement(
        replace(SEARCH, rate_qps=2.0),
        runs,
        ELAPSED_NS,
        answer=answer,
        name=name,
        others=("TPOT p95 <= 40 ms",) if name == "TTFT" else ("TTFT p95 <= 450 ms",),
        mix={"rate_qps": 2.0, "ttft_bound_ms": 450.0, "tpot_bound_ms": 40.0, "percentile": 95.0},
        own=own[name],
        limited_by="TTFT",
    )
    return loaded(evaluation, 13 + (name == "TPOT"), found)
