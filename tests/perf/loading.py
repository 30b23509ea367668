"""The loader beside the frameworks' own: RecordIO, LMDB and a folder, with two workers on both sides.

All sides read the same generated images, and resize, crop and normalise them to 224 × 224. MXNet's
``ImageRecordIter`` decodes with OpenCV, and so does the loader beside it. PyTorch's ``DataLoader`` calls the
program's own datasets, decoder and preprocessor, so that both differ in nothing but how they load.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from inferometer.agent.preprocessing.preprocessor import Preprocessor, preprocessor_of
from inferometer.evaluators.conversion.lmdb_environment import encoded_datum
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.datasets.opening import open_path
from inferometer.evaluators.datasets.recordio import IMAGE_HEADER, framed
from inferometer.evaluators.loading.loader import DatasetLoader
from inferometer.evaluators.loading.options import LoaderOptions
from inferometer.manifests.inputs import Decoder, ImageParameters
from tests.perf.ratios import Row, divided, interleaved

IMAGES = 512
BATCH_SIZE = 32
WORKERS = 2
AHEAD = 4
"""Batches that are loaded ahead on every side; a DataLoader has two for each worker."""
EPOCHS = 3
_CLASSES = 10
_MEAN, _SCALE = (123.68, 116.28, 103.53), (58.4, 57.12, 57.38)


def measure(rounds: int) -> list[Row]:
    """Measures every format beside its peers, in samples per second."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as opened:
        folder = Path(name)
        contents = [_image(number) for number in range(IMAGES)]
        formats = {
            "RecordIO": (_write_records(folder / "images.rec", contents), Decoder.OPENCV),
            "LMDB": (_write_lmdb(folder / "lmdb", contents), Decoder.PILLOW),
            "folder": (_write_folder(folder / "images", contents), Decoder.PILLOW),
        }
        rows = []
        for title, (path, decoder) in formats.items():
            with ExitStack() as sides:
                dataset = opened.enter_context(closing(open_path(path, "vision")))
                rows += _compared(title, dataset, path, _parameters(decoder), rounds, sides)
        return rows


def _compared(
    title: str, dataset: Dataset, path: Path, parameters: ImageParameters, rounds: int, sides: ExitStack
) -> list[Row]:
    """Returns the ratios of one format: to each peer, and of each peer to itself."""
    peers = {"DataLoader": _data_loader(dataset, parameters)}
    if title == "RecordIO":
        peers["ImageRecordIter"] = _record_iterator(path, parameters)
    measured: dict[str, Callable[[], float]] = {}
    for kind in ("threads", "processes"):
        options = LoaderOptions(BATCH_SIZE, WORKERS, processes=kind == "processes", prefetch=AHEAD)
        loader = sides.enter_context(DatasetLoader(dataset, parameters, options))
        measured[kind] = partial(_rate, partial(_own_batches, loader))
    for name, batches in peers.items():
        measured[name] = measured[f"{name} again"] = partial(_rate, batches)
    taken = interleaved(rounds, measured)
    pairs = [(kind, peer) for peer in peers for kind in ("threads", "processes", f"{peer} again")]
    return [_row(title, over, under, taken) for over, under in pairs]


def _row(title: str, over: str, under: str, taken: Mapping[str, Sequence[float]]) -> Row:
    itself = over == f"{under} again"
    name = f"{title}: {under} / itself (A/A)" if itself else f"{title}: {WORKERS} {over} / {under}"
    detail = f"{np.median(taken[over]):.0f} / {np.median(taken[under]):.0f} samples/s"
    return Row(name, divided(taken[over], taken[under]), "" if itself else "≥ 1.0", detail)


def _rate(batches: Callable[[], Iterator[int]]) -> float:
    """Samples per second over all epochs, from asking for the first batch to the end of the last."""
    begin_s = time.perf_counter()
    samples = sum(batches())
    assert samples == EPOCHS * IMAGES, samples
    return samples / (time.perf_counter() - begin_s)


def _own_batches(loader: DatasetLoader) -> Iterator[int]:
    """The sizes of the batches; nothing is left that was loaded ahead for a next epoch."""
    for number in range(EPOCHS - 1):
        for batch in loader.epoch(number):
            yield len(batch.inputs)
    with closing(loader.epoch(EPOCHS - 1)) as last:  # closed before its end, it loads no other ahead
        for _ in range(loader.batches):
            yield len(next(last).inputs)


class _Samples:
    """The program's dataset as a map-style dataset of PyTorch."""

    def __init__(self, dataset: Dataset, parameters: ImageParameters) -> None:
        self._dataset = dataset
        self._parameters = parameters
        self._preprocess: Preprocessor | None = None

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[NDArray[Any], int]:
        if self._preprocess is None:
            self._preprocess = preprocessor_of(self._parameters)
        sample = self._dataset.sample(index)
        return self._preprocess(sample.read()), int(sample.label or 0)


def _data_loader(dataset: Dataset, parameters: ImageParameters) -> Callable[[], Iterator[int]]:
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        _Samples(dataset, parameters),  # type: ignore[arg-type]
        BATCH_SIZE,
        num_workers=WORKERS,
        prefetch_factor=AHEAD // WORKERS,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )

    def batches() -> Iterator[int]:
        for _ in range(EPOCHS):
            for inputs, _labels in loader:
                yield len(inputs)

    return batches


def _record_iterator(path: Path, parameters: ImageParameters) -> Callable[[], Iterator[int]]:
    from inferometer.agent.frameworks.mxnet.runtime import mxnet

    mean, scale = parameters.mean, parameters.scale
    iterator = mxnet.io.ImageRecordIter(
        path_imgrec=str(path),
        data_shape=(3, 224, 224),
        batch_size=BATCH_SIZE,
        resize=round(224 / parameters.crop_ratio),
        preprocess_threads=WORKERS,
        prefetch_buffer=AHEAD,
        verbose=False,
        **{f"mean_{channel}": value for channel, value in zip("rgb", mean, strict=True)},
        **{f"std_{channel}": value for channel, value in zip("rgb", scale, strict=True)},
    )

    def batches() -> Iterator[int]:
        for _ in range(EPOCHS):
            iterator.reset()
            for batch in iterator:
                batch.data[0].wait_to_read()
                yield batch.data[0].shape[0] - batch.pad

    return batches


def _parameters(decoder: Decoder) -> ImageParameters:
    """Resizing to 240, the crop of 224 in the centre, and normalisation."""
    return ImageParameters(
        dimensions=(3, 224, 224),
        mean=_MEAN,
        scale=_SCALE,
        keep_aspect_ratio=True,
        crop_ratio=224 / 240,
        decoder=decoder,
    )


def _image(number: int) -> bytes:
    """A JPEG of 256 × 256 pixels with smooth areas and noise."""
    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8))
    smooth = np.asarray(coarse.resize((256, 256), Image.Resampling.BICUBIC), np.int16)
    pixels = np.clip(smooth + random.normal(0, 12, smooth.shape), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _write_records(path: Path, contents: Sequence[bytes]) -> Path:
    records = (
        framed(IMAGE_HEADER.pack(0, float(number % _CLASSES), number, 0) + content)
        for number, content in enumerate(contents)
    )
    path.write_bytes(b"".join(records))
    return path


def _write_lmdb(path: Path, contents: Sequence[bytes]) -> Path:
    import lmdb

    with lmdb.open(str(path), map_size=1 << 30) as environment, environment.begin(write=True) as writing:
        for number, content in enumerate(contents):
            writing.put(f"{number:08}".encode(), encoded_datum(content, number % _CLASSES))
    return path


def _write_folder(path: Path, contents: Sequence[bytes]) -> Path:
    for number, content in enumerate(contents):
        place = path / str(number % _CLASSES) / f"{number:04}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return path
