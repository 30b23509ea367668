"""The job that loads alone: from a request to an evaluation, without the model."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import select_model
from inferometer.evaluators.evaluation import Status
from inferometer.evaluators.jobs.job import JobCallbacks, JobStart, Progress, SystemRequest
from inferometer.evaluators.kinds.ingestion.job import ingest
from inferometer.evaluators.kinds.ingestion.request import IngestionLength, IngestionRequest
from inferometer.evaluators.kinds.training.request import TrainingData
from inferometer.evaluators.loading import page_cache
from inferometer.evaluators.loading.page_cache import CachedShare
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, DatasetError, EvaluationInterrupted
from inferometer.manifests.schema import ModelManifest
from tests.unit.evaluators.loading.tensor_datasets import Killing


class Resources:
    """Finds models of the program's manifests, and opens none."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.cache = None
        self.registry = Registry()

    def find_model(self, request: SystemRequest) -> ModelManifest:
        return select_model(self.catalog, self.registry, request.model_name, request.model_version)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty images of digits' size in two classes that no model knows, of which one is damaged."""
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(3)
    for number in range(20):
        place = root / ("left", "right")[number % 2] / f"{number:02}.png"
        place.parent.mkdir(exist_ok=True)
        buffer = io.BytesIO()
        Image.fromarray(random.integers(0, 256, (8, 8), np.uint8)).save(buffer, "PNG")
        place.write_bytes(buffer.getvalue() if number != 3 else buffer.getvalue()[:40])
    return root


def requested(folder: Path, **given: Any) -> IngestionRequest:
    data = {name: given.pop(name) for name in set(given) & set(TrainingData.__dataclass_fields__)}
    return IngestionRequest(
        data=TrainingData(path=folder, **data),
        batch_size=4,
        length=IngestionLength(num_batches=8, num_warmup_batches=1),
        **given,
    )


@pytest.mark.parametrize(
    "workers",
    [{}, {"workers": 2, "prefetch": 2}, {"workers": 1, "processes": True, "prefetch": 1}],
    ids=["caller", "threads", "processes"],
)
def test_a_dataset_is_loaded_and_the_model_is_not(folder: Path, workers: dict[str, Any]) -> None:
    starts: list[JobStart] = []
    progress: list[Progress] = []
    callbacks = JobCallbacks(on_start=starts.append, on_progress=progress.append)

    evaluation = ingest(requested(folder, **workers), Resources(), callbacks)

    measured, system = evaluation.measurement, evaluation.system
    assert evaluation.status is Status.COMPLETE
    assert (system.manifest.name, system.checksums, system.threads) == ("DigitsCNN", {}, None)
    assert system.preprocess_threads == workers.get("workers", 0)
    assert "Pillow" in system.environment.image_libraries
    assert evaluation.conditions is not None
    assert evaluation.dataset.name == str(folder)
    # the first batch of each epoch has the damaged image; that of the first one warms up
    assert measured.times.samples.tolist() == [3 if place % 5 == 4 else 4 for place in range(8)]
    assert [failure.input_id for failure in measured.failures] == ["right/03.png"]
    assert measured.elapsed_ns == measured.times.whole_ns.sum() > 0
    assert measured.epochs == 2
    data = measured.data
    assert (data.backend, data.reader, data.dropped) == ("image_folder", "own", False)
    assert (data.workers, data.processes) == (workers.get("workers", 0), workers.get("processes", False))
    assert data.cached_before in (None, 1.0)
    [start] = starts
    assert (start.inputs, start.input_count) == (str(folder), 20)
    assert start.work.startswith("loading, batch 4, image_folder by ")
    assert progress[-1] == Progress(9, 9)


def test_a_dropped_dataset_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "drop", lambda files: CachedShare(0.001 * bool(list(files))))

    data = ingest(requested(folder, drop_cache=True), Resources()).measurement.data

    assert (data.cached_before, data.dropped) == (0.001, True)


@pytest.mark.parametrize(
    ("left", "warning"),
    [
        (
            CachedShare(0.75),
            "drop_cache: 75 % of the dataset stayed in the page cache: its file system is in",
        ),
        (CachedShare(None, "not told"), "drop_cache: not told"),
    ],
)
def test_a_dataset_that_cannot_be_dropped_is_loaded_with_a_warning(
    folder: Path, left: CachedShare, warning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "drop", lambda _: left)
    warnings: list[str] = []

    evaluation = ingest(
        requested(folder, drop_cache=True), Resources(), JobCallbacks(on_warning=warnings.append)
    )

    data = evaluation.measurement.data
    assert (data.cached_before, data.dropped) == (left.share, False)
    assert len(warnings) == 1
    assert warnings[0].startswith(warning)


def test_a_run_that_is_stopped_is_interrupted(folder: Path) -> None:
    seen: list[Progress] = []
    callbacks = JobCallbacks(on_progress=seen.append, stop_requested=lambda: len(seen) >= 3)

    evaluation = ingest(requested(folder), Resources(), callbacks)

    assert evaluation.status is Status.INTERRUPTED
    assert len(evaluation.measurement.times.whole_ns) == 2


def test_a_worker_that_is_lost_is_an_error_unless_the_job_was_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingData, "open", lambda *_: Killing(20, failing=(9,)))
    request = requested(folder, workers=1, processes=True)

    with pytest.raises(DatasetError, match="a worker process of the loader was ended by SIGKILL"):
        ingest(request, Resources())
    asked: list[bool] = []

    def stop() -> bool:  # asked before each of three batches, and once more after the loss
        asked.append(len(asked) >= 3)
        return asked[-1]

    with pytest.raises(EvaluationInterrupted, match="stopped while a worker process ended"):
        ingest(request, Resources(), JobCallbacks(stop_requested=stop))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": TrainingData()}, "ingestion reads a dataset, but none is named; give data_dir"),
        ({"reader": "foreign"}, "reader is foreign; allowed: own, framework"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        (
            {"data": TrainingData(path=Path("a"), workers=1, processes=True), "reader": "framework"},
            "a framework's reader uses threads; leave out the worker processes",
        ),
    ],
)
def test_requests_that_cannot_be_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        IngestionRequest(**{"data": TrainingData(path=Path("a")), **given})


def test_a_framework_has_no_reader_of_a_folder(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="no framework has a reader of image_folder"):
        ingest(requested(folder, reader="framework"), Resources())
