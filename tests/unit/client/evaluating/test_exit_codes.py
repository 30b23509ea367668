"""The exit code of an evaluation: what went wrong first, and no second reason that follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inferometer.client.evaluating.running import evaluation_code
from inferometer.evaluators.evaluation import Status
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement
from inferometer.evaluators.load.queries import Outcome
from tests.contract.store_fixtures import make_evaluation
from tests.reports.loads import OPTIONS, queries, run

FAILED_INPUTS, INVALID, INTERRUPTED = 1, 8, 130


@pytest.mark.parametrize(
    ("status", "outcome", "code"),
    [
        (Status.COMPLETE, Outcome.ANSWERED, INVALID),
        (Status.FAILED, Outcome.FAILED, FAILED_INPUTS),
        (Status.INTERRUPTED, Outcome.ANSWERED, INTERRUPTED),
    ],
)
def test_only_a_whole_run_is_invalid(status: Status, outcome: Outcome, code: int) -> None:
    """A schedule that was late is news of a run that was completed, and of no other."""
    late = replace(run(queries([5.0] * 3, [outcome] * 3)), invalid="the schedule was late")
    evaluation = make_evaluation(status=status, measurement=LoadMeasurement(OPTIONS, late, 10**9))

    assert evaluation_code(evaluation, published=False, allow_invalid=False) == code


def test_an_interrupted_load_says_nothing_of_conditions(capsys: pytest.CaptureFixture[str]) -> None:
    measurement = LoadMeasurement(OPTIONS, run(queries([5.0])), 10**9)
    evaluation = make_evaluation(status=Status.INTERRUPTED, measurement=measurement)

    assert evaluation_code(evaluation, published=False, require_stable=True) == INTERRUPTED
    assert "--require_stable" not in capsys.readouterr().err
