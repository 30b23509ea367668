"""The metric of regression: how far numbers are from their targets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Predictions, Values
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.datasets.truths import TargetValues
from inferometer.evaluators.tasks.bootstrap import ratio_interval, score_within
from inferometer.evaluators.tasks.metric import Score, ScoreInterval, TaskMetric, TaskResult
from inferometer.manifests.errors import DatasetError, PredictionError
from inferometer.manifests.schema import ModelManifest

DEFINITION = "MAE, RMSE and R² of each number, mean over the numbers, version 1"

_Numbers = NDArray[np.float64]


class RegressionMetric(TaskMetric):
    """Compares N × k numbers with their targets.

    The mean absolute error, the root of the mean squared error and the coefficient of determination are
    those of each of the k numbers over the samples; a score is their mean, as scikit-learn's with
    ``multioutput="uniform_average"``. R² is not defined for targets that are all the same, which are left
    out of its mean; without others it is None.
    """

    task = "regression"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        self._predicted: list[_Numbers] = []
        self._targets: list[_Numbers] = []

    def add(self, sample: Sample, prediction: Predictions) -> None:
        """Takes the numbers of one input; see ``TaskMetric``."""
        truth = sample.read_truth()
        if truth is None:
            return
        if not isinstance(truth, TargetValues):
            raise DatasetError("has no targets, which a regression is scored against")
        if not isinstance(prediction, Values) or len(prediction) != 1:
            raise PredictionError("the prediction has no numbers")
        values = prediction.values[0].astype(np.float64)
        if values.shape != truth.values.shape:
            raise PredictionError(
                f"{len(values)} numbers were predicted; the dataset has {truth.values.size} targets"
            )
        if self._targets and len(self._targets[0]) != len(truth.values):
            raise DatasetError(f"has {len(truth.values)} targets, and others before {len(self._targets[0])}")
        with np.errstate(over="ignore"):
            if not np.isfinite(values - truth.values).all():
                raise PredictionError("a number differs from its target by more than float64 holds")
        self._predicted.append(values)
        self._targets.append(truth.values)

    def result(self) -> TaskResult | None:
        """Returns the scores; None if no input with targets was predicted."""
        if not self._targets:
            return None
        predicted, targets = np.stack(self._predicted), np.stack(self._targets)
        figures = {
            "MAE": _absolute(predicted, targets),
            "RMSE": _root_of_squares(predicted, targets),
            "R2": _determination(predicted, targets),
        }
        details = {n: [float(v) if np.isfinite(v) else None for v in each] for n, each in figures.items()}
        intervals, scores = _intervals(predicted, targets), []
        for name, each in figures.items():
            value = _mean(each)
            if not np.isfinite(value):
                scores.append(Score(name, None))
            elif name == "R2":
                scores.append(score_within(name, value, intervals[name], most=1.0))
            else:
                scores.append(score_within(name, value, intervals[name], least=0.0))
        labels = self.manifest.output.parameters.labels
        return TaskResult(
            self.task, DEFINITION, len(targets), scores, {"values": list(labels), "scores": details}
        )


@np.errstate(over="ignore", invalid="ignore")
def _intervals(predicted: _Numbers, targets: _Numbers) -> dict[str, ScoreInterval | None]:
    """Returns the intervals of the scores over other samples of the kind."""
    errors, ones = np.abs(predicted - targets), np.ones_like(targets)
    spread = np.where(np.ptp(targets, axis=0) > 0, np.square(targets - targets.mean(axis=0)), 0.0)
    missed = ratio_interval(np.square(errors), spread)
    return {
        "MAE": ratio_interval(errors, ones),
        "RMSE": ratio_interval(np.square(errors), ones, power=0.5),
        "R2": None if missed is None else ScoreInterval(1.0 - missed.high, 1.0 - missed.low),
    }


@np.errstate(over="ignore")
def _absolute(predicted: _Numbers, targets: _Numbers) -> _Numbers:
    errors, exponents = _scaled(predicted - targets)
    means: _Numbers = np.ldexp(np.abs(errors).mean(axis=0), exponents)
    return means


@np.errstate(over="ignore")
def _root_of_squares(predicted: _Numbers, targets: _Numbers) -> _Numbers:
    errors, exponents = _scaled(predicted - targets)
    roots: _Numbers = np.ldexp(np.sqrt(np.square(errors).mean(axis=0)), exponents)
    return roots


@np.errstate(over="ignore")
def _determination(predicted: _Numbers, targets: _Numbers) -> _Numbers:
    """R² of each number, ``1 - Σ(y - ŷ)² / Σ(y - ȳ)²``; NaN where the targets are all the same.

    It is -inf where it is below what float64 holds.
    """
    errors, of_errors = _scaled(predicted - targets)
    scaled, of_targets = _scaled(targets)
    deviations, of_deviations = _scaled(scaled - scaled.mean(axis=0))
    varied = targets.max(axis=0) > targets.min(axis=0)
    spread = np.square(deviations).sum(axis=0)
    missed = np.divide(
        np.square(errors).sum(axis=0), spread, out=np.full(len(spread), np.nan), where=varied & (spread > 0)
    )
    shares: _Numbers = 1.0 - np.ldexp(missed, 2 * (of_errors - of_targets - of_deviations))
    return shares


def _scaled(values: _Numbers) -> tuple[_Numbers, NDArray[np.int32]]:
    """Values by a power of two for each column, which is exact, so that no sum and no square overflows.

    Returns:
        float64, samples × k, within ±2; and int32, k: the exponents of the powers.
    """
    exponents: NDArray[np.int32] = np.frexp(np.abs(values).max(axis=0))[1] - 1
    return values / np.ldexp(1.0, exponents), exponents


def _mean(each: _Numbers) -> float:
    """Returns the mean of what is defined; NaN if nothing is, and -inf if that of one number is."""
    defined = each[~np.isnan(each)]
    return float((defined / len(defined)).sum()) if len(defined) else np.nan
