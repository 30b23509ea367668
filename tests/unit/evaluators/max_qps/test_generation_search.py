"""The search for the rate at which bounds on TTFT, TPOT and e2e are kept, on a simulated server."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from inferometer.evaluators.kinds.generation.job import BoundedProbes
from inferometer.evaluators.kinds.generation.measurement import GenerationMeasurement, GenerationSummary
from inferometer.evaluators.kinds.load.measurement import Method
from inferometer.evaluators.kinds.load.request import MaxQpsRequest
from inferometer.evaluators.kinds.load.search import search_factor
from inferometer.evaluators.load.arrivals import Extent, Schedule
from inferometer.evaluators.load.issuer import RunLimits
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries, Stop
from inferometer.evaluators.load.streams import Answer, ChunkKind
from tests.generated_answers import MS, answer, measured

PLACES, TOKENS = 4, 20
FIRST_MS, TOKEN_MS, CROWD_MS = 20.0, 5.0, 1.5


def load(bound_ms: float, **options: Any) -> MaxQpsRequest:
    given = {"tolerance": 0.02, "time_budget_s": 400.0, "min_duration_s": 5.0, "percentile": 95.0}
    return MaxQpsRequest(initial_qps=8.0, latency_bound_ms=bound_ms, **given | options)


def served_ms(due_ms: Sequence[float]) -> Mapping[str, np.ndarray]:
    """The times of requests of which ``PLACES`` are served at once, the slower the more of them there are."""
    free_ms, ttft, tpot = [0.0] * PLACES, [], []
    for due in due_ms:
        turn = max(due, heapq.heappop(free_ms))
        token = TOKEN_MS + CROWD_MS * sum(end > turn for end in free_ms)
        heapq.heappush(free_ms, turn + FIRST_MS + token * (TOKENS - 1))
        ttft.append(turn + FIRST_MS - due)
        tpot.append(token)
    found = {"TTFT": np.array(ttft), "TPOT": np.array(tpot)}
    return found | {"e2e": found["TTFT"] + found["TPOT"] * (TOKENS - 1)}


@dataclass
class Simulated:
    """A ``LoadSession`` in virtual time, whose ``answered`` tells the answers of the last run."""

    elapsed_s: float = 0.0
    whole: list[float | None] = field(default_factory=list)
    times: Mapping[str, np.ndarray] = field(default_factory=dict)

    def reconnect(self) -> None:
        pass

    def run(self, schedule: Schedule, bound_ns: int | None, max_late: int, name: str) -> LoadRun:
        self.whole.append(bound_ns and bound_ns / MS)
        due_ns, nothing = schedule.offsets_ns, np.full(len(schedule), -1, np.int64)
        self.times = served_ms((due_ns / MS).tolist())
        done_ns = due_ns + np.rint(self.times["e2e"] * MS).astype(np.int64)
        outcome = np.full(len(due_ns), Outcome.ANSWERED, np.int64)
        queries = Queries(due_ns, due_ns, done_ns, outcome, nothing, nothing, np.zeros(len(due_ns), np.int64))
        self.elapsed_s += done_ns.max() / 1e9
        return LoadRun(schedule.rate_qps, schedule.source, schedule.seed, schedule.checksum, queries)

    def answered(self, run: LoadRun) -> GenerationMeasurement:
        first = run.queries.scheduled_ns + np.rint(self.times["TTFT"] * MS).astype(np.int64)
        answers = [
            Answer(begin, end, [(begin, ChunkKind.TEXT, 1), (end, ChunkKind.TEXT, 1)], 9, TOKENS, "length")
            for begin, end in zip(first.tolist(), run.queries.done_ns.tolist(), strict=True)
        ]
        more = {"options": {}, "elapsed_ns": 1, "tokens_by": "the server", "prompts": ""}
        return GenerationMeasurement.of(run, answers, [TOKENS] * len(answers), **more)


def true_rates(bounds: Mapping[str, MaxQpsRequest]) -> dict[str, float]:
    """The highest rate that keeps each bound, from long simulated runs."""
    found = {}
    for name, bound in bounds.items():
        low, high = 0.0, 25.0
        for _ in range(10):
            rate_qps = (low + high) / 2
            drawn = Schedule.drawn(bound.process, rate_qps, Extent(0.0, 20_000), 5)
            late = served_ms((drawn.offsets_ns / MS).tolist())[name] > bound.latency_bound_ms
            low, high = (rate_qps, high) if late.mean() <= bound.late_fraction else (low, rate_qps)
        found[name] = low
    return found


@pytest.mark.parametrize(
    ("bounds_ms", "limiting"),
    [
        ({"TTFT": 60.0, "TPOT": 12.0, "e2e": 400.0}, "TTFT"),
        ({"TTFT": 400.0, "TPOT": 9.0}, "TPOT"),
        ({"e2e": 200.0}, "e2e"),
    ],
)
def test_the_answer_is_the_rate_at_which_the_first_bound_breaks(
    bounds_ms: Mapping[str, float], limiting: str
) -> None:
    truth = true_rates({name: load(each) for name, each in bounds_ms.items()})
    assert min(truth, key=lambda name: truth[name]) == limiting

    held, errors = 0, []
    for seed in range(5):
        bounds = {name: load(each, seed=seed) for name, each in bounds_ms.items()}
        session = Simulated()
        probes = BoundedProbes(bounds, session, RunLimits(1e4), session.answered)  # type: ignore[arg-type]
        answer, own, limited_by = search_factor(bounds, probes, busy_ms=120.0)

        found = answer.times(8.0)
        assert (found.method, limited_by) == (Method.LATE_FRACTION.value, limiting)
        held += found.low_qps <= truth[limiting] <= found.high_qps
        errors.append(found.rate_qps / truth[limiting] - 1)
        for name, each in own.items():
            assert each.times(8.0).low_qps <= 1.1 * truth[name]
    assert held >= 4
    assert abs(np.median(errors)) <= 0.05
    assert np.abs(errors).max() <= 0.15


def test_no_probe_rests_on_a_few_requests() -> None:
    """At two requests/s, half a second has one: if that is late by chance, its rate would be halved."""
    bounds = {"TTFT": replace(load(60.0, min_duration_s=0.5), initial_qps=2.0)}
    session = Simulated()
    probes = BoundedProbes(bounds, session, RunLimits(1e4), session.answered)  # type: ignore[arg-type]

    search_factor(bounds, probes, busy_ms=120.0)

    first, *_ = probes.probes[0]
    assert first.rate_qps == 2.0
    assert min(len(run.queries) for (run,) in probes.probes) >= 15  # the first tenth is left out


def test_every_bound_judges_the_same_requests() -> None:
    bounds = {"TTFT": load(60.0), "TPOT": load(9.0), "e2e": load(400.0)}
    session = Simulated()
    probes = BoundedProbes(bounds, session, RunLimits(1e4), session.answered)  # type: ignore[arg-type]
    schedules = [Schedule.drawn(load(1).process, 30.0, Extent(0.0, 200), seed) for seed in (1, 2, 3)]

    runs = [probes.run(schedules, [(round(bound.latency_bound_ms * MS), 9) for bound in bounds.values()], "")]
    runs.append(probes.run(schedules, [(60 * MS, 9), (9 * MS, 9), (400 * MS, 9)], ""))

    truth = served_ms((schedules[0].offsets_ns / MS).tolist())
    for name, run in zip(bounds, runs[0], strict=True):
        assert run.checksum == schedules[0].checksum
        assert run.queries.latency_ns / MS == pytest.approx(truth[name], abs=1e-5)
    # until the first probe has told how long answers are, only the bound on whole answers can stop it
    assert session.whole == [400.0, min(400.0, 60.0 + TOKENS * 9.0)]


def judged(name: str, **more: Any) -> dict[int, float]:
    """What the bound on a time judges: the latency in ms of each request, by when it was due in 0.1 s."""
    good, none = answer(0, 50, 8), Answer()
    answers = [
        *(replace(answer(100 * n, 50, 8)) for n in range(4)),
        answer(400, 50, 8, chunks=2, error="broken"),
        none,
        replace(good, chunks=[]),
        answer(700, 50, 8, chunks=1, output_tokens=1),
        answer(800, 50, 8, chunks=2, finish=""),
        replace(none),
    ]
    outcomes = [Outcome.ANSWERED] * 10
    outcomes[5], outcomes[8], outcomes[9] = Outcome.TIMED_OUT, Outcome.WAITING, Outcome.WAITING
    found = measured(answers, outcomes, cut_ms=200)
    stopped = replace(found, run=replace(found.run, stopped=Stop.HOPELESS.value))
    run = GenerationSummary(stopped).run_of(name)
    return dict(
        zip((run.queries.scheduled_ns // (100 * MS)).tolist(), run.queries.latency_ns / MS, strict=True)
    )


NEVER = pytest.approx(2**63 / MS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 4 fails, 5 times out, 6 has no content, 7 has one token; a stop leaves 8 begun, and 9 waiting
        ("TTFT", {2: 50, 3: 50, 4: NEVER, 5: NEVER, 6: NEVER, 7: 50, 8: 50, 9: NEVER}),
        ("TPOT", {2: 32 / 9, 3: 32 / 9, 4: NEVER, 5: NEVER, 6: NEVER}),
        ("e2e", {2: 84, 3: 84, 4: NEVER, 5: NEVER, 6: NEVER, 7: 52, 8: NEVER, 9: NEVER}),
    ],
)
def test_what_a_bound_judges(name: str, expected: Mapping[int, float]) -> None:
    found = judged(name)

    assert found.keys() == expected.keys()
    for due, latency_ms in expected.items():
        assert found[due] == (latency_ms if latency_ms is NEVER else pytest.approx(latency_ms, abs=1e-5))
