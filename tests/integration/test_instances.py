"""Instance segmentation from an image to COCO's AP of masks, with and without a batch axis in the outputs."""

from __future__ import annotations

import numpy as np
import pytest
from mask_detector import write_coco, write_mask_detectors

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.agent.tasks.predictions import Instances, decoded
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.datasets.opening import open_path
from inferometer.evaluators.evaluation import SystemUnderTest
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.manifests.catalog import Catalog


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return Catalog([write_mask_detectors(tmp_path_factory.mktemp("detectors"))])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_path(write_coco(tmp_path_factory.mktemp("coco") / "cats"), "vision")


def evaluated(
    model: str, address: str | None, catalog: Catalog, dataset: Dataset, batch_size: int
) -> BatchMeasurement:
    if address is not None:
        system: SystemUnderTest = open_remote_agent(address, model)
    else:
        manifest = catalog.find_model(model, None, {"ONNXRuntime": "99"})
        system = open_session(manifest, SessionOptions(), Registry())
    with system:
        options = BatchOptions(batch_size, batch_size, warmup_num_file_parts=0)
        return DatasetRun(system, dataset, options, keep_most=None).run().measurement


@pytest.mark.parametrize("served", [False, True], ids=["here", "served"])
@pytest.mark.parametrize(
    ("model", "batch_size"), [("Batched", 2), ("Batched", 1), ("Single", 1), ("Fixed", 1)]
)
def test_masks_are_scored(
    model: str, batch_size: int, served: bool, catalog: Catalog, dataset: Dataset, address: str
) -> None:
    found = evaluated(model, address if served else None, catalog, dataset, batch_size)
    assert found.failures == ()
    first, second = (each.prediction for each in found.predictions)
    assert isinstance(first, Instances)
    assert isinstance(second, Instances)
    assert first.boxes.tolist() == [[0, 0, 16, 8], [8, 4, 16, 8]]
    assert first.classes.tolist() == [0, 1]
    red, green = (decoded(each, 8, 16) for each in first.run_lengths())
    assert np.argwhere(red).tolist() == [[y, x] for y in range(8) for x in range(8)]
    assert np.argwhere(green).tolist() == [[y, x] for y in range(4, 8) for x in range(8, 16)]
    assert not decoded(second.run_lengths()[1], 8, 16).any()
    result = found.task_result
    assert result is not None
    assert (result.task, result.samples) == ("instance_segmentation", 2)
    # the mask of the second cat overlaps its truth by exactly one half, and the boxes of both do not count
    assert result.score("AP50") == pytest.approx(1.0)
    assert result.score("AP75") == pytest.approx((51 / 101 + 1) / 2)
    assert result.score("AP") == pytest.approx((0.1 + 0.9 * 51 / 101 + 1) / 2)


@pytest.mark.parametrize("served", [False, True], ids=["here", "served"])
def test_outputs_without_a_batch_axis_require_batches_of_one(
    served: bool, catalog: Catalog, dataset: Dataset, address: str
) -> None:
    for model in ("Single", "Fixed"):
        failures = evaluated(model, address if served else None, catalog, dataset, 2).failures
        assert [failure.input_id for failure in failures] == ["1", "2"]
        for failure in failures:
            assert "batch_size 1" in failure.message
            assert len(failure.message.splitlines()) == 1
