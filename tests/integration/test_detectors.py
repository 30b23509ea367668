"""Object detection from an image to COCO's AP, in this process and at a served agent, in each framework."""

from __future__ import annotations

import pytest
from constant_detector import FILES, write_coco, write_detectors

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.agent.tasks.predictions import Detections
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.evaluators.datasets.base import Dataset, Subset
from inferometer.evaluators.datasets.opening import open_path
from inferometer.evaluators.evaluation import SystemUnderTest
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.manifests.catalog import Catalog


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return Catalog([write_detectors(tmp_path_factory.mktemp("detectors"))])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_path(write_coco(tmp_path_factory.mktemp("coco") / "cats"), "vision")


def evaluated(system: SystemUnderTest, dataset: Dataset) -> BatchMeasurement:
    with system:
        options = BatchOptions(batch_size=3, partition_list_size=3)
        return DatasetRun(system, dataset, options, keep_most=None).run().measurement


@pytest.mark.parametrize("served", [False, True], ids=["here", "served"])
@pytest.mark.parametrize("framework", FILES)
def test_a_detector_is_scored(
    framework: str, served: bool, catalog: Catalog, dataset: Dataset, address: str
) -> None:
    if served:
        system: SystemUnderTest = open_remote_agent(address, "ConstantDetector", framework_name=framework)
    else:
        versions = {framework: "1.9.1" if framework == "MXNet" else "99"}
        manifest = catalog.find_model("ConstantDetector", None, versions)
        system = open_session(manifest, SessionOptions(), Registry())
    found = evaluated(system, dataset)
    assert found.failures == ()
    rows = [each.prediction for each in found.predictions]
    for row in rows:
        assert isinstance(row, Detections)
        # the input of 8 × 8 pixels shows an image of 16 × 8
        assert (row.boxes.tolist(), row.scores.tolist(), row.classes.tolist()) == (
            [[4, 2, 12, 6]],
            [0.875],
            [0],
        )
    result = found.task_result
    assert result is not None
    assert (result.task, result.samples) == ("object_detection", 4)
    # two of three objects are found before the first box that is wrong: recalls 0, 0.01 … 0.66
    assert result.score("AP50") == pytest.approx(67 / 101)


def test_only_the_samples_of_a_subset_count(catalog: Catalog, dataset: Dataset) -> None:
    manifest = catalog.find_model("ConstantDetector", None, {"ONNXRuntime": "99"})
    with open_session(manifest, SessionOptions(), Registry()) as system:
        options = BatchOptions(batch_size=3, partition_list_size=3)
        result = DatasetRun(system, Subset(dataset, ["1"]), options).run().measurement.task_result
    assert result is not None
    assert (result.samples, result.score("AP")) == (1, pytest.approx(1.0))
