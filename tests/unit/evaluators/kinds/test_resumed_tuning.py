"""A tuning that is interrupted and resumed, in virtual time: its answer is that of one without a stop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.kinds.registry import find_kind
from inferometer.evaluators.kinds.tuning.figures import Trial, TuningMeasurement
from inferometer.evaluators.kinds.tuning.kind import TuningJob
from inferometer.evaluators.kinds.tuning.race import Race, Replay
from inferometer.evaluators.kinds.tuning.request import Configuration, TuningRequest
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.queries import LoadRun, Stop
from inferometer.manifests.errors import ConfigurationError, SessionError
from tests import tuned_hosts
from tests.contract.store_fixtures import make_evaluation
from tests.tuned_hosts import Host, SimulatedProber, request_of

HOST = Host(cores=4, fixed_s=0.004, query_s=0.001)
SPACE = [
    Configuration(count, 1, size, 0.0, precision)
    for count, precision in ((1, None), (2, None), (9, None), (1, "bfloat16"))
    for size in (1, 4, 16)
]
"""Those with nine instances are not possible."""


class Prober(SimulatedProber):
    """The noise of a run depends only on its number, and openings are told apart from runs."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__(HOST, interrupted_after=stop_after)
        self.sent: list[tuple[Configuration, str]] = []

    def run(self, schedule: Schedule, *arguments: Any) -> LoadRun:
        self._random = np.random.RandomState(len(self.runs))
        self.sent.append((self.used[-1], schedule.checksum))
        return super().run(schedule, *arguments)


def nothing(request: TuningRequest) -> TuningMeasurement:
    return TuningMeasurement(request.load.load_options(), (), 0)


def tuned(
    request: TuningRequest,
    prober: Any,
    stored: TuningMeasurement | None = None,
    peak_bytes: Callable[[], int] = lambda: 0,
) -> TuningMeasurement:
    """The tuning by a prober, which continues the stored one."""
    replay = Replay(prober, prober.use, peak_bytes, stored or nothing(request))
    race = Race(request, map(Trial, SPACE), replay, math.inf)
    answer = race.answer() if race.run() else None
    options = request.load.load_options()
    found = (options, tuple(prober.runs), 0, answer, race.trials(), request.asked)
    return TuningMeasurement(*found, ended_s=race.ended_s)


def stored(measured: TuningMeasurement) -> TuningMeasurement:
    """What is read from the database."""
    kind = find_kind("tuning")
    document, parts = kind.to_documents(make_evaluation(measurement=measured), "save")
    documents = {name: list(part.documents) for name, part in parts.items()}
    found: TuningMeasurement = kind.from_documents({"measurement": document, "elapsed_ns": 0}, documents)
    return found


REQUESTS = {
    "rate": request_of(0, 60.0, time_budget_s=60.0),
    "latency": request_of(0, 60.0, rate_qps=100.0, time_budget_s=60.0),
}


@cache
def whole(name: str) -> tuple[TuningMeasurement, tuple[tuple[Configuration, str], ...]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuned_hosts, "OPENING_S", 0.0)  # a resumed one opens the model once more
        prober = Prober()
        return tuned(REQUESTS[name], prober), tuple(prober.sent)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.2, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_resumed_tuning_answers_like_one_that_was_not_interrupted(
    name: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned_hosts, "OPENING_S", 0.0)
    expected, sent = whole(name)
    count = int(share * len(sent))
    before = tuned(REQUESTS[name], Prober(stop_after=count))
    assert before.probes[-1].stop is Stop.INTERRUPTED
    prober = Prober()

    found = tuned(REQUESTS[name], prober, stored(before))

    assert tuple(prober.sent) == sent[count:]  # no other probe is sent, each with its configuration
    assert (found.answer, found.trials) == (expected.answer, expected.trials)
    assert list(found.ended_s) == list(expected.ended_s)
    assert [run.checksum for run in found.probes] == [run.checksum for run in expected.probes]
    assert all(run.stop is not Stop.INTERRUPTED for run in found.probes)


def test_a_tuning_is_resumed_again() -> None:
    request = REQUESTS["rate"]
    first = tuned(request, Prober(stop_after=20))
    second = tuned(request, Prober(stop_after=30), stored(first))
    prober = Prober()

    found = tuned(request, prober, stored(second))

    assert len(second.probes) == 31
    assert len(prober.sent) == len(found.probes) - 30
    assert found.answer is not None


@pytest.mark.parametrize("budget_s", [20.0, 300.0])
def test_a_tuning_is_resumed_with_less_or_more_time(budget_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned_hosts, "OPENING_S", 0.0)
    request, before = request_of(0, 60.0, time_budget_s=budget_s), tuned(REQUESTS["rate"], Prober(20))

    found = tuned(request, Prober(), stored(before))

    expected = tuned(request, Prober())
    assert (found.answer, found.trials) == (expected.answer, expected.trials)
    assert (found.answer is None) == (budget_s == 20.0)


class _OnceProber(Prober):
    """Can serve the largest configuration only once."""

    def use(self, c: Configuration) -> str:
        return "no memory" if c == SPACE[5] and c in self.used else super().use(c)


def test_the_probes_of_a_configuration_that_later_was_not_possible_are_replayed() -> None:
    request, prober = REQUESTS["rate"], Prober()
    before = tuned(request, _OnceProber(stop_after=30))

    found = tuned(request, prober, stored(before))

    trials = {each.configuration: each for each in found.trials}
    assert (trials[SPACE[5]].stopped, len(trials[SPACE[5]].probes)) == ("not possible: no memory", 3)
    assert len(prober.sent) == len(found.probes) - 30


def test_another_probe_than_the_stored_one_is_sent_and_the_rest_is_dropped() -> None:
    request, prober = REQUESTS["rate"], Prober()
    before = tuned(request, Prober(stop_after=20))
    probes = list(before.probes)
    probes[10] = replace(probes[10], checksum="sha256:another")

    found = tuned(request, prober, stored(replace(before, probes=tuple(probes))))

    assert len(prober.sent) == len(found.probes) - 10
    assert found.answer is not None


def test_a_configuration_that_no_longer_can_be_served_is_an_error() -> None:
    request, prober = REQUESTS["rate"], Prober()
    before = tuned(request, Prober(stop_after=1))
    prober.use = lambda _: "no memory"  # type: ignore[method-assign]

    with pytest.raises(SessionError, match="no longer possible after the interruption: no memory"):
        tuned(request, prober, stored(before))


def test_the_memory_of_stored_probes_counts_and_not_that_of_now() -> None:
    request = request_of(0, 60.0, time_budget_s=60.0, max_memory_mib=2)
    large = SPACE[2]  # with the largest batches, which grow beyond the limit
    prober = Prober(stop_after=15)
    before = tuned(request, prober, peak_bytes=lambda: (3 if prober.used[-1] == large else 1) * 2**20)

    found = tuned(request, Prober(), stored(before), peak_bytes=lambda: 2**20)

    trials = {each.configuration: each for each in found.trials}
    assert trials[large].stopped == "its memory peaks above 2 MiB"
    assert trials[large].memory_bytes == 3 * 2**20
    assert trials[SPACE[1]].memory_bytes == 2**20


class Resources:
    """Has one stored evaluation; no model is opened."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation

    def stored(self, _: str) -> Evaluation:
        return self._evaluation


@pytest.mark.parametrize(
    ("given", "status", "message"),
    [
        ({}, Status.COMPLETE, "evaluation run-1 is no interrupted tuning"),
        ({"percentile": 95.0}, Status.INTERRUPTED, "cannot be resumed with another percentile$"),
        ({"threads": (1, 2)}, Status.INTERRUPTED, "cannot be resumed with another threads$"),
    ],
    ids=str,
)
def test_what_cannot_be_resumed_is_refused_before_the_model_is_opened(
    given: dict[str, Any], status: Status, message: str
) -> None:
    before = tuned(REQUESTS["rate"], Prober(stop_after=5))
    evaluation = make_evaluation(id="run-1", measurement=stored(before), status=status)
    request = request_of(0, 60.0, **{"time_budget_s": 60.0, "resume": "run-1", **given})

    with pytest.raises(ConfigurationError, match=message):
        next(TuningJob(request).run(Resources(evaluation)))  # type: ignore[arg-type]


def test_another_seed_is_refused() -> None:
    before = tuned(REQUESTS["rate"], Prober(stop_after=5))
    evaluation = make_evaluation(id="run-1", measurement=stored(before), status=Status.INTERRUPTED)
    request = request_of(3, 60.0, time_budget_s=60.0, resume="run-1")

    with pytest.raises(ConfigurationError, match=r"another seed$"):
        next(TuningJob(request).run(Resources(evaluation)))  # type: ignore[arg-type]


def test_a_memory_limit_is_refused_where_the_peak_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferometer.evaluators.kinds.tuning.kind.read_peak_bytes", lambda: 0)
    request = request_of(0, 60.0, max_memory_mib=100)

    with pytest.raises(ConfigurationError, match="max_memory needs the peak of memory from Linux's /proc"):
        next(TuningJob(request).run(Resources(make_evaluation())))  # type: ignore[arg-type]
