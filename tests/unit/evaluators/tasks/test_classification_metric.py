"""The metric of classification: intervals by Wilson, and the calibration error, against figures by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferometer.agent.preprocessing.inputs import Tensor
from inferometer.agent.tasks.predictions import Classifications, Values
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.score_intervals import wilson_interval
from inferometer.evaluators.tasks.classification import ClassificationMetric
from inferometer.evaluators.tasks.metric import METRICS
from inferometer.manifests.errors import DatasetError, PredictionError
from inferometer.manifests.schema import ModelManifest

LABELS = ("ant", "bee", "cat")


def metric(transform: str = "softmax") -> ClassificationMetric:
    manifest = ModelManifest.model_validate(
        {
            "name": "Tiny",
            "framework": {"name": "Fake"},
            "inputs": [{"type": "image", "parameters": {"dimensions": [3, 8, 8]}}],
            "output": {
                "type": "classification",
                "parameters": {"labels": LABELS, "probabilities_transform": transform},
            },
            "model": {"graph_path": "graph"},
        }
    )
    found = METRICS.find("classification")(manifest)
    assert isinstance(found, ClassificationMetric)
    return found


def add(to: ClassificationMetric, rows: list[tuple[str | None, str, list[float]]]) -> None:
    """Adds samples, each with its label, the best class and the probabilities from the best one on."""
    samples = [Sample(str(n), Tensor(np.zeros(1)), label) for n, (label, _, _) in enumerate(rows)]
    ranked = [[LABELS.index(best), *(n for n in range(3) if LABELS[n] != best)] for _, best, _ in rows]
    probabilities = np.array([shares for *_, shares in rows], np.float32)
    failures = to.add_batch(samples, Classifications(np.array(ranked, np.int64), probabilities))
    assert failures == ()


def scores(of: ClassificationMetric) -> dict[str, Any]:
    result = of.result()
    assert result is not None
    return {score.name: score.value for score in result.scores}


def test_the_calibration_error_is_that_of_bins_by_hand() -> None:
    found = metric()
    # two in the bin (0.6, 0.667], of which one is right: |1 - 1.28|; one in (0.933, 1]: |1 - 1|
    add(found, [("ant", "ant", [0.62, 0.3, 0.08]), ("bee", "ant", [0.66, 0.3, 0.04])])
    add(found, [("cat", "cat", [1.0, 0.0, 0.0]), (None, "cat", [0.5, 0.3, 0.2])])

    assert scores(found)["ECE"] == pytest.approx(0.28 / 3, abs=1e-6)
    result = found.result()
    assert result is not None
    assert result.samples == 3
    assert [each["samples"] for each in result.details["calibration"]] == [2, 1]


def test_a_bin_includes_its_upper_end() -> None:
    found = metric()
    for best in (0.55, 0.6):  # in float64, which has the ends exactly
        rest = np.array([[best, 0.9 - best, 0.1]])
        found.add_batch([Sample("1", Tensor(np.zeros(1)), "ant")], Classifications(np.arange(3)[None], rest))
    result = found.result()
    assert result is not None
    assert [each["samples"] for each in result.details["calibration"]] == [2]


def test_a_perfectly_calibrated_model_has_no_error() -> None:
    found = metric()
    add(found, [("ant" if n < 8 else "bee", "ant", [0.8, 0.1, 0.1]) for n in range(10)])
    assert scores(found)["ECE"] == pytest.approx(0, abs=1e-6)
    assert scores(found)["top-1"] == 0.8


@pytest.mark.parametrize(
    ("shares", "shown"),
    [
        ([0.7, 0.2, 0.1], True),
        ([7.0, 2.0, -1.0], False),  # logits
        ([0.9, 0.2, -0.1], False),
        ([0.7, 0.6, 0.5], False),  # independent sigmoids
        ([0.3, 0.2, 0.1], False),  # all classes are there, and more is missing than rounding takes
    ],
)
def test_outputs_that_are_no_probabilities_have_no_calibration_error(
    shares: list[float], shown: bool
) -> None:
    found = metric("none")
    add(found, [("ant", "ant", [0.7, 0.2, 0.1]), ("ant", "ant", shares)])
    assert ("ECE" in scores(found)) is shown
    assert scores(found)["top-1"] == 1.0


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (447, 450, 0.9806, 0.9977)],
)
def test_wilson_intervals(hits: int, count: int, low: float, high: float) -> None:
    assert wilson_interval(hits, count) == pytest.approx((low, high), abs=1e-4)


def test_without_samples_there_is_no_interval_and_no_result() -> None:
    assert wilson_interval(0, 0) is None
    assert metric().result() is None


def test_what_does_not_fit_is_refused() -> None:
    found, sample = metric(), Sample("a", Tensor(np.zeros(1)), "dog")
    with pytest.raises(DatasetError, match='"dog" is none of the 3 classes'):
        found.check(sample)
    with pytest.raises(PredictionError, match="the predictions are values"):
        found.add(sample, Values(np.zeros((1, 1), np.float32)))
