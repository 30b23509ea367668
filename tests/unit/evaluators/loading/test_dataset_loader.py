"""The loader of a dataset: the same batches from every kind of worker, with every failure named."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from inferometer.agent.inference.stages import InputFailure, Stage
from inferometer.agent.preprocessing.preprocessor import preprocessor_of
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.datasets.folder import FolderDataset
from inferometer.evaluators.datasets.opening import open_path
from inferometer.evaluators.loading.loader import DatasetLoader, LoadedBatch
from inferometer.evaluators.loading.options import LoaderOptions
from inferometer.manifests.errors import ConfigurationError, DatasetError
from inferometer.manifests.inputs import ImageParameters
from tests.unit.evaluators.loading.tensor_datasets import (
    BYTES,
    PARAMETERS,
    Counting,
    Damaged,
    Killing,
    Misshapen,
    Numbered,
    Slow,
    Unopenable,
    Unpicklable,
    tensor,
    wait_until,
)

THREADS, PROCESSES = {"workers": 2}, {"workers": 2, "processes": True}
KINDS = {
    "caller": {},
    "threads": THREADS,
    "threads ahead": {**THREADS, "prefetch": 3},
    "processes": PROCESSES,
    "processes ahead": {**PROCESSES, "prefetch": 3},
}
DEADLINE_S = 20.0
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
# where it is alike whether batches are loaded ahead
every_worker = pytest.mark.parametrize(
    "kind", [{}, THREADS, PROCESSES], ids=["caller", "threads", "processes"]
)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No process and no segment of shared memory outlives a test."""
    yield
    assert multiprocessing.active_children() == []
    shared = Path("/dev/shm")
    of_this_process = f"*-{os.getpid()}-*"
    assert not shared.is_dir() or list(shared.glob(of_this_process)) == []


def places(batch: LoadedBatch) -> list[int]:
    """The places that the rows of a batch hold."""
    assert (batch.inputs == batch.inputs[:, :1, :1]).all()
    return [int(value) for value in batch.inputs[:, 0, 0]]


def loaded(dataset: Dataset, epoch: int = 0, **options: object) -> list[tuple[list[int], list[int]]]:
    """The places and the labels of each batch of an epoch."""
    with DatasetLoader(dataset, PARAMETERS, LoaderOptions(**options), find_label=_number) as loader:
        return [(places(batch), batch.labels.tolist()) for batch in loader.epoch(epoch)]


def _number(label: str | None) -> int:
    assert label is not None
    return int(label)


@every_kind
def test_every_kind_of_worker_gives_the_same_batches_one_epoch_after_the_other(kind: dict[str, int]) -> None:
    given = {"batch_size": 5, "shuffle": True, "seed": 9}
    with DatasetLoader(
        Numbered(23), PARAMETERS, LoaderOptions(**given, **kind), find_label=_number
    ) as loader:
        epochs = [
            [(places(batch), batch.labels.tolist()) for batch in loader.epoch(number)] for number in (2, 0, 2)
        ]

    assert loader.batches == 5
    assert epochs[0] == epochs[2] != epochs[1]
    for number, found in zip((2, 0), epochs, strict=False):
        assert found == loaded(Numbered(23), number, **given)
        assert [len(batch) for batch, _ in found] == [5, 5, 5, 5, 3]
        assert sorted(place for batch, _ in found for place in batch) == list(range(23))
        assert all(
            label == place % 7 for batch, labels in found for place, label in zip(batch, labels, strict=True)
        )
        assert found != sorted(found)


@pytest.mark.parametrize("prefetch", [1, 3, 50])
def test_a_held_loader_begins_nothing_ahead_of_what_it_may(prefetch: int) -> None:
    dataset = Counting(10)
    with DatasetLoader(dataset, PARAMETERS, LoaderOptions(2, workers=2, prefetch=prefetch)) as loader:
        assert loader.hold(2)
        batches = loader.epoch(0)
        assert [places(next(batches)) for _ in range(2)] == [[0, 1], [2, 3]]
        assert (sorted(dataset.read_places), loader.hold(4)) == ([0, 1, 2, 3], True)
        assert [places(next(batches)) for _ in range(2)] == [[4, 5], [6, 7]]
        assert sorted(dataset.read_places) == list(range(8))
        assert places(next(batches)) == [8, 9]


@every_worker
def test_a_sample_that_fails_is_named_and_left_out(kind: dict[str, int]) -> None:
    dataset = Misshapen(12, failing=(1, 4, 5), misshapen=(8, 9, 10, 11))
    with DatasetLoader(dataset, PARAMETERS, LoaderOptions(4, **kind)) as loader:
        first, second, third = [(places(batch), batch) for batch in loader.epoch(0)]

    assert [first[0], second[0], third[0]] == [[0, 2, 3], [6, 7], []]
    assert first[1].failures == (InputFailure("n1", Stage.READ, "n1 is damaged"),)
    assert [failure.input_id for failure in second[1].failures] == ["n4", "n5"]
    assert [(failure.input_id, failure.stage) for failure in third[1].failures] == [
        (f"n{place}", Stage.PREPROCESS) for place in (8, 9, 10, 11)
    ]
    assert [len(batch.labels) for _, batch in (first, second, third)] == [3, 2, 0]


@every_kind
def test_a_damaged_dataset_ends_the_epoch_where_it_is_damaged(kind: dict[str, int]) -> None:
    with DatasetLoader(Damaged(9, failing=(4,)), PARAMETERS, LoaderOptions(2, **kind)) as loader:
        epoch = loader.epoch(0)
        assert [places(next(epoch)), places(next(epoch))] == [[0, 1], [2, 3]]
        with pytest.raises(DatasetError, match="record 4 lies beyond the end of the file"):
            next(epoch)
        assert places(next(loader.epoch(1))) == [0, 1]


@every_worker
def test_a_class_that_the_model_does_not_know_is_an_error(kind: dict[str, int]) -> None:
    def find(label: str | None) -> int:
        if label == "3":
            raise DatasetError("the dataset's class 3 is none of the model's")
        return 0

    with DatasetLoader(Numbered(6), PARAMETERS, LoaderOptions(2, **kind), find) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        with pytest.raises(DatasetError, match="class 3 is none of the model's"):
            next(epoch)


@every_kind
def test_an_epoch_can_be_left_in_the_middle(kind: dict[str, int]) -> None:
    with DatasetLoader(Numbered(40), PARAMETERS, LoaderOptions(3, **kind)) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        epoch.close()
        assert places(next(loader.epoch(0))) == [0, 1, 2]
        abandoned = loader.epoch(1)
        next(abandoned)
        assert [place for batch in loader.epoch(2) for place in places(batch)] == list(range(40))
        assert list(abandoned) == []
        next(loader.epoch(3))


@every_worker
def test_an_exception_of_the_caller_ends_the_workers(kind: dict[str, int]) -> None:
    def run() -> None:
        with DatasetLoader(Numbered(40), PARAMETERS, LoaderOptions(3, **kind)) as loader:
            for _ in loader.epoch(0):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()


def test_ranks_get_samples_of_their_own() -> None:
    given = {"batch_size": 2, "ranks": 2, "shuffle": True}
    first, second = ([batch for batch, _ in loaded(Numbered(10), **given, rank=rank)] for rank in (0, 1))

    assert [len(batch) for batch in first] == [len(batch) for batch in second] == [2, 2, 1]
    assert sorted(place for batch in (*first, *second) for place in batch) == list(range(10))


@every_worker
def test_times_and_bytes_are_those_of_the_samples(kind: dict[str, int]) -> None:
    with DatasetLoader(Slow(6, 0.01), PARAMETERS, LoaderOptions(3, **kind)) as loader:
        batches = list(loader.epoch(0))

    for batch in batches:
        assert batch.read_bytes == 3 * BYTES
        assert batch.read_ns >= 3 * 10_000_000
        assert 0 < batch.preprocess_ns < batch.read_ns


def test_without_prefetch_nothing_is_read_before_it_is_asked_for() -> None:
    dataset = Counting(6)
    with DatasetLoader(dataset, PARAMETERS, LoaderOptions(2, workers=2)) as loader:
        epoch = loader.epoch(0)
        assert dataset.read_places == []
        for asked in (2, 4, 6):
            next(epoch)
            assert len(dataset.read_places) == asked


@pytest.mark.parametrize("prefetch", [1, 2])
def test_with_prefetch_so_many_batches_are_loaded_ahead(prefetch: int) -> None:
    dataset = Counting(12)
    with DatasetLoader(dataset, PARAMETERS, LoaderOptions(2, workers=1, prefetch=prefetch)) as loader:
        epoch = loader.epoch(0)
        for asked in (1, 2, 3):
            held = next(epoch)
            last = 2 * (asked + prefetch) - 1
            assert dataset.was_read[last].wait(DEADLINE_S)
            assert places(held) == [2 * asked - 2, 2 * asked - 1]
            assert not dataset.was_read[last + 1].is_set()


def test_the_beginning_of_the_next_epoch_is_loaded_ahead_too() -> None:
    dataset = Counting(6)
    with DatasetLoader(dataset, PARAMETERS, LoaderOptions(2, workers=1, prefetch=1)) as loader:
        assert len(list(loader.epoch(0))) == 3
        deadline_s = time.monotonic() + DEADLINE_S
        while len(dataset.read_places) < 8:
            assert time.monotonic() < deadline_s
        assert [places(batch) for batch in loader.epoch(1)] == [[0, 1], [2, 3], [4, 5]]
    assert dataset.read_places[:12] == [0, 1, 2, 3, 4, 5] * 2


@pytest.mark.real_time
@pytest.mark.parametrize("kind", [{}, {"workers": 1}, {"workers": 1, "processes": True}], ids=str)
def test_without_prefetch_all_of_a_slower_load_is_waited_for(kind: dict[str, int]) -> None:
    waits_ms = [1e3 * wait_s for wait_s in waits(Slow(20, 0.020), 0.005, **kind)]
    base_ms = [1e3 * wait_s for wait_s in waits(Slow(20, 0.0), 0.005, **kind)]

    assert np.median(waits_ms) - np.median(base_ms) == pytest.approx(20, rel=0.1)


@pytest.mark.real_time
@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_with_prefetch_a_slower_load_vanishes_until_it_is_the_bound(processes: bool) -> None:
    ahead = {"workers": 1, "processes": processes, "prefetch": 2}

    hidden_ms = [1e3 * wait_s for wait_s in waits(Slow(20, 0.020), 0.030, **ahead)]
    bound_ms = [1e3 * wait_s for wait_s in waits(Slow(20, 0.020), 0.005, **ahead)]

    assert np.median(hidden_ms[3:]) < 1
    # what the caller does meanwhile is taken off
    assert np.median(bound_ms[3:]) == pytest.approx(15, rel=0.1)


def waits(dataset: Dataset, work_s: float, **options: int) -> list[float]:
    """How long each batch was waited for by a caller that works so long on each."""
    found = []
    with DatasetLoader(dataset, PARAMETERS, LoaderOptions(1, **options)) as loader:
        epoch = loader.epoch(0)
        for _ in range(loader.batches):
            begin_s = time.perf_counter()
            next(epoch)
            end_s = time.perf_counter()
            found.append(end_s - begin_s)
            wait_until(end_s + work_s)
    return found


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_worker_that_is_killed_is_an_error_at_once(prefetch: int) -> None:
    dataset = Killing(64, failing=(8,))
    with DatasetLoader(dataset, PARAMETERS, LoaderOptions(8, **PROCESSES, prefetch=prefetch)) as loader:
        with pytest.raises(
            DatasetError, match="was ended by SIGKILL before it was complete; the kernel does"
        ):
            list(loader.epoch(0))
        assert multiprocessing.active_children() == []
        with pytest.raises(DatasetError, match="the loader is closed"):
            loader.epoch(1)


def test_a_worker_that_is_killed_while_nobody_waits_is_an_error_at_the_next_batch() -> None:
    with DatasetLoader(Numbered(64), PARAMETERS, LoaderOptions(8, **PROCESSES)) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        victim = psutil.Process(loader.processes[1])
        victim.kill()
        deadline_s = time.monotonic() + DEADLINE_S
        while victim.is_running() and victim.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline_s
        with pytest.raises(DatasetError, match="ended by SIGKILL"):
            list(epoch)


def test_workers_are_other_processes_that_the_loader_names() -> None:
    with DatasetLoader(Numbered(4), PARAMETERS, LoaderOptions(2, **PROCESSES)) as loader:
        children = {child.pid for child in multiprocessing.active_children()}
        assert set(loader.processes) == children
        assert os.getpid() not in children
    with DatasetLoader(Numbered(4), PARAMETERS, LoaderOptions(2, **THREADS)) as loader:
        assert loader.processes == ()


def test_a_dataset_that_cannot_be_passed_on_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"dataset numbered cannot be passed to worker.*use threads"):
        DatasetLoader(Unpicklable(4), PARAMETERS, LoaderOptions(2, **PROCESSES))


def test_a_dataset_that_another_process_cannot_open_is_refused() -> None:
    with pytest.raises(DatasetError, match="numbered: the file is gone"):
        DatasetLoader(Unopenable(4), PARAMETERS, LoaderOptions(2, **PROCESSES))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven images in two classes, one of which is damaged."""
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(5)
    for number in range(7):
        folder = root / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        pixels = random.integers(0, 256, (20, 30, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    damaged = root / "class1/5.png"
    damaged.write_bytes(damaged.read_bytes()[:100])
    return root


@pytest.mark.parametrize(
    ("kind", "container"),
    [({}, "folder"), ({}, "zip"), (KINDS["threads ahead"], "folder"), (KINDS["processes ahead"], "zip")],
    ids=["caller", "caller of a zip", "threads ahead", "processes ahead of a zip"],
)
def test_images_are_what_the_preprocessor_makes_of_them(
    kind: dict[str, int], container: str, images: Path, tmp_path: Path
) -> None:
    import shutil

    parameters = ImageParameters(dimensions=(3, 8, 8), mean=(100.0,), scale=(50.0,))
    path = images if container == "folder" else Path(shutil.make_archive(str(tmp_path / "a"), "zip", images))
    dataset = open_path(path, "vision")
    preprocess = preprocessor_of(parameters)
    expected = [preprocess(sample.read()) for sample in dataset if sample.id != "class1/5.png"]

    with DatasetLoader(dataset, parameters, LoaderOptions(4, **kind), _class_number) as loader:
        batches = [replace(batch, inputs=batch.inputs.copy()) for batch in loader.epoch(0)]
    dataset.close()

    assert np.array_equal(np.concatenate([batch.inputs for batch in batches]), np.stack(expected))
    assert [label for batch in batches for label in batch.labels] == [0, 1, 0, 1, 0, 0]
    [failure] = [failure for batch in batches for failure in batch.failures]
    assert (failure.input_id, failure.stage) == ("class1/5.png", Stage.PREPROCESS)
    sizes = sum(path.stat().st_size for path in FolderDataset(images, "vision").files())
    assert sum(batch.read_bytes for batch in batches) == sizes


def _class_number(label: str | None) -> int:
    assert label is not None
    return int(label.removeprefix("class"))


@every_worker
def test_arrays_are_loaded_by_every_kind_of_worker(kind: dict[str, int], tmp_path: Path) -> None:
    inputs = np.stack([tensor(place) for place in range(6)])
    np.savez(tmp_path / "numbers.npz", inputs=inputs, labels=np.arange(6))
    dataset = open_path(tmp_path / "numbers.npz", "tensors")

    assert loaded(dataset, batch_size=4, **kind) == [([0, 1, 2, 3], [0, 1, 2, 3]), ([4, 5], [4, 5])]
