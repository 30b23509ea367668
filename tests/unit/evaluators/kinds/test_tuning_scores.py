"""Precisions whose score on the dataset is too low: they are left out of the race, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.kinds.load.job import LoadJob
from inferometer.evaluators.kinds.tuning.figures import Trial
from inferometer.evaluators.kinds.tuning.kind import TuningJob, TuningKind, TuningReport, _leave_out, _scores
from inferometer.evaluators.kinds.tuning.race import Race
from inferometer.evaluators.kinds.tuning.request import Configuration, TuningRequest
from inferometer.evaluators.score_intervals import ScoreInterval
from inferometer.evaluators.tasks.metric import Score, TaskResult
from inferometer.manifests.errors import ConfigurationError, InferometerError
from tests.contract.store_fixtures import make_evaluation
from tests.tuned_hosts import Host, SimulatedProber, request_of, tuned_host

PRECISIONS = ("float32", "bfloat16", "float16")
HALF = ScoreInterval(0.45, 0.55)
NO_KERNEL = ConfigurationError("cannot run it in float16")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the evaluation in each precision finds: a score, none, or an error."""
    scores: dict[str, Any] = {}

    def evaluate(request: Any, *_: object) -> Iterator[Any]:
        assert request.options.num_file_parts == -1
        assert not request.options_at(request.trace_level).repeats
        found = scores[request.system.session.precision.value]
        if isinstance(found, InferometerError):
            raise found
        result = None if found is None else TaskResult("classification", "", 100, (found,))
        dataset = SimpleNamespace(name="digits")
        yield SimpleNamespace(measurement=SimpleNamespace(task_result=result), dataset=dataset)

    monkeypatch.setattr("inferometer.evaluators.kinds.tuning.kind.evaluate", evaluate)
    return scores


class Resources:
    """Finds no manifest, checks nothing, and has one stored evaluation."""

    catalog = SimpleNamespace(find_models=lambda *_: [])

    def __init__(self, stored: Evaluation | None = None) -> None:
        self._stored = stored

    def stored(self, _: str) -> Evaluation | None:
        return self._stored

    def check_system(self, _: object) -> None:
        return None


def scored(given: dict[str, Any], least: float) -> tuple[str, dict[str | None, dict[str, Any]]]:
    request = TuningRequest(dtype=tuple(given), min_score=least)
    name, found = _scores(request, Resources(), SimpleNamespace(on_warning=None))  # type: ignore[arg-type]
    _leave_out(least, name, found)
    return name, found


def test_precisions_below_the_score_and_those_that_cannot_run_are_left_out(given: dict[str, Any]) -> None:
    given |= {"float32": Score("PSNR", 30.0, None, "dB"), "bfloat16": Score("PSNR", 28.0, HALF, "dB")}
    given["float16"] = NO_KERNEL

    name, found = scored(given, 29.0)

    assert name == "PSNR (dB)"
    assert found == {
        "float32": {"score": 30.0, "score_low": None, "score_high": None},
        "bfloat16": {
            "score": 28.0,
            "score_low": 0.45,
            "score_high": 0.55,
            "stopped": "its precision has a PSNR (dB) of 28, below 29",
        },
        "float16": {"stopped": "not possible: cannot run it in float16"},
    }


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([Score("top-1", 0.5), Score("top-1", 0.4)], "min_score is 0.6, but the highest top-1 is 0.5"),
        ([Score("top-1", 0.5), NO_KERNEL], "min_score is 0.6, but the highest top-1 is 0.5"),
        ([NO_KERNEL, ConfigurationError("another")], "^cannot run it in float16$"),
        ([None], "min_score: DigitsCNN has no score on digits; it needs labels, and weights that"),
        ([Score("MAE", 0.5)], "min_score: MAE is an error: less is better; leave it out"),
    ],
)
def test_without_a_precision_that_has_the_score_there_is_an_error(
    given: dict[str, Any], found: list[Any], message: str
) -> None:
    given |= dict(zip(PRECISIONS, found, strict=False))

    with pytest.raises(ConfigurationError, match=message):
        scored(given, 0.6)


def test_a_score_at_the_limit_is_enough(given: dict[str, Any]) -> None:
    given["float32"] = Score("top-1", 0.6)

    assert "stopped" not in scored(given, 0.6)[1]["float32"]


def test_a_precision_that_is_left_out_is_not_raced() -> None:
    reason = "its precision has a top-1 of 0.4, below 0.5"
    trials = [
        Trial(Configuration(1, 1, size, 0.0, precision), stopped=reason * (precision == "bfloat16"))
        for precision in ("float32", "bfloat16")
        for size in (1, 8)
    ]
    prober = SimulatedProber(Host(cores=4, fixed_s=0.004, query_s=0.001))
    race = Race(request_of(0, 60.0), trials, prober, 1e9)  # type: ignore[arg-type]

    race.run()

    assert {each.precision for each in prober.used} == {"float32"}
    assert race.best is trials[1]
    assert [each.stopped for each in race.trials()[2:]] == [reason, reason]
    assert all(not each.probes for each in trials[2:])


@pytest.mark.parametrize("least", [0.3, 0.45])
def test_a_resumed_tuning_keeps_the_scores(least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = tuned_host(whole=False, dtype=("float32", "bfloat16"), min_score=least)
    values = {"float32": 0.5, "bfloat16": 0.4}
    for each in measured.trials:
        each.score = values[each.configuration.precision or ""]
    stored = make_evaluation(
        id="run-1", measurement=replace(measured, score_name="top-1"), status=Status.INTERRUPTED
    )
    request = request_of(
        0, 60.0, dtype=("float32", "bfloat16"), min_score=least, max_batch_size=(1, 8), resume="run-1"
    )
    monkeypatch.setattr(LoadJob, "run", lambda *_: iter([None]))
    job = TuningJob(request)

    list(job.run(Resources(stored)))  # type: ignore[arg-type]

    assert (job._score_name, job._scores["float32"]["score"]) == ("top-1", 0.5)
    assert ("stopped" in job._scores["bfloat16"]) == (least > 0.4)


def test_the_table_and_the_summary_have_the_score_with_its_interval() -> None:
    measured = tuned_host()
    for each in measured.trials:
        each.score, each.score_low, each.score_high = 0.5, 0.45, 0.55
    evaluation: Any = make_evaluation(measurement=replace(measured, score_name="top-1"))

    row = next(iter(TuningReport().rows([evaluation])))

    assert [row[f"score{end}"] for end in ("_name", "", "_low", "_high")] == ["top-1", 0.5, 0.45, 0.55]
    assert dict(TuningKind().summary(evaluation))["score"] == "top-1 0.5 [0.45, 0.55]"


def test_synthetic_inputs_have_no_score() -> None:
    with pytest.raises(ConfigurationError, match="min_score needs a dataset with labels"):
        TuningRequest(synthetic=True, min_score=0.5)
