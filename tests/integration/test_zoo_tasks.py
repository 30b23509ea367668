"""The shipped models of tasks beyond classification do them well, and alike in every framework and place."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.datasets.opening import open_dataset
from inferometer.evaluators.evaluation import SystemUnderTest
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.manifests.catalog import Catalog

FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")
# The first score of a model, and what it has to reach. The denoiser's inputs have 22.6643 dB.
LEAST: Mapping[str, Mapping[str, float]] = {
    "DigitsDetector": {"AP50": 0.8},
    "DigitsSegmenter": {"mean_IoU": 0.7},
    "DigitsDenoiser": {"PSNR": 22.6643 + 3},
    "DigitsEmbedder": {"recall@1": 0.9},
    "StatementsCNN": {"accuracy": 0.9},
}
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog()


def system_of(catalog: Catalog, model: str, framework: str, address: str | None) -> SystemUnderTest:
    if address is not None:
        return open_remote_agent(address, model, framework_name=framework)
    registry = Registry()
    manifest = catalog.find_model(model, None, {framework: registry.versions[framework]})
    return open_session(manifest, SessionOptions(threads=1), registry)


def evaluated(system: SystemUnderTest, dataset: Dataset) -> BatchMeasurement:
    with system:
        options = BatchOptions(batch_size=32, partition_list_size=32, warmup_num_file_parts=0)
        return DatasetRun(system, dataset, options, keep_most=None).run().measurement


@pytest.mark.parametrize("model", LEAST)
def test_a_model_does_its_task_alike_in_each_framework_and_place(
    model: str, catalog: Catalog, address: str
) -> None:
    name = catalog.find_model(model, None, Registry().versions).dataset
    assert name is not None
    with closing(open_dataset(catalog.find_dataset(name))) as dataset:
        places = [(framework, place) for framework in FRAMEWORKS for place in (None, address)]
        found = [evaluated(system_of(catalog, model, *place), dataset) for place in places]
    first = found[0]
    for other in found:
        result = other.task_result
        assert result is not None
        assert other.failures == ()
        assert result.samples == len(other.predictions) == len(dataset)
        for score, least in LEAST[model].items():
            assert (result.score(score) or 0) >= least
        assert first.task_result is not None
        for ours, theirs in zip(first.task_result.scores, result.scores, strict=True):
            assert ours.name == theirs.name
            assert theirs.value == pytest.approx(ours.value, abs=1e-3)
        for one, same in zip(first.predictions, other.predictions, strict=True):
            assert one.input_id == same.input_id
            assert_alike(one.prediction.columns(), same.prediction.columns())


def assert_alike(ours: Mapping[str, NDArray[Any]], theirs: Mapping[str, NDArray[Any]]) -> None:
    """Compares numbers within a tolerance, but for a few pixels and boxes at the border of two classes."""
    assert ours.keys() == theirs.keys()
    for name, column in ours.items():
        assert column.shape == theirs[name].shape
        alike = np.isclose(column, theirs[name], atol=TOLERANCE, rtol=TOLERANCE)
        assert alike.mean() > 0.99, name
