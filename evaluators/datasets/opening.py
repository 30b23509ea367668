"""Opening of datasets by a manifest or a path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING

from inferometer.agent.artifacts.checksums import SHA256, digest
from inferometer.agent.artifacts.locations import refer
from inferometer.agent.artifacts.model_files import get_file
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.datasets.detection import BACKENDS, backend_of, place_of
from inferometer.manifests.errors import (
    IMPORT_FAILURES,
    ArtifactError,
    ConfigurationError,
    DatasetError,
    one_line,
    suggestion,
)
from inferometer.manifests.inputs import TensorSpec
from inferometer.manifests.schema import DatasetManifest

if TYPE_CHECKING:
    from inferometer.agent.artifacts.cache import ArtifactCache

ENTRY_POINTS = "inferometer.datasets"
_READERS: Mapping[str, str] = {
    "recordio": "recordio:RecordDataset",
    "caffe_lmdb": "caffe_lmdb:LmdbDataset",
    "image_folder": "folder:FolderDataset",
    "npz": "arrays:ArraysDataset",
    "zip": "archive:ArchiveDataset",
    "ilsvrc2012_validation": "ilsvrc2012:ValidationDataset",
    "cifar10": "cifar10:CifarDataset",
    "mnist": "mnist:IdxDataset",
    "coco": "tasks.coco:CocoDataset",
    "voc": "tasks.voc:VocDataset",
    "mask_folder": "tasks.masks:MaskFolderDataset",
    "voc_segmentation": "tasks.masks:VocSegmentationDataset",
    "paired_folder": "tasks.pairs:PairedFolderDataset",
    "values_csv": "tasks.values:ValuesTableDataset",
    "jsonl": "tasks.text:JsonLinesDataset",
    "csv": "tasks.text:CsvDataset",
    "squad": "tasks.text:SquadDataset",
}
"""The readers, as ``module:class`` of this folder; each is imported on first use."""
_DIGESTED = frozenset({"npz", "zip", "values_csv", "jsonl", "csv", "squad"})
"""The formats whose files are read when they are opened; others may be too large to read twice."""


def open_dataset(
    manifest: DatasetManifest, cache: ArtifactCache | None = None, tensors: Sequence[TensorSpec] = ()
) -> Dataset:
    """Opens the dataset that a manifest describes.

    Args:
        manifest: The dataset.
        cache: The cache for downloads; None requires a file beside the manifest.
        tensors: The tensors of the model, whose names are those of the arrays in an ``.npz``.

    Raises:
        DatasetError: It is missing, cannot be downloaded, has another checksum, or is not a dataset.
    """
    if not manifest.path:
        raise DatasetError(
            f"dataset {manifest.name}: {manifest.obtain}; then name the place with dataset_path, or in the "
            f"configuration file under datasets: {manifest.name}"
        )
    path = Path(manifest.path) if manifest.source is None else manifest.source.parent / manifest.path
    if manifest.obtain or manifest.backend:
        backend = manifest.backend or backend_of(path)
        if not manifest.checksum and (path.exists() or manifest.obtain):
            return _opened(path, backend, manifest.category, manifest.name, manifest.version, None, tensors)
    if path.is_dir():
        if manifest.checksum:
            raise DatasetError(
                f"{manifest.source}: field checksum: {path} is a folder, which has none; leave it out, "
                "or zip the folder"
            )
        return _opened(
            path, backend_of(path), manifest.category, manifest.name, manifest.version, None, tensors
        )
    try:
        file = get_file(refer(manifest, "path", manifest.path, manifest.checksum), cache)
    except ArtifactError as error:
        raise DatasetError(str(error)) from error
    return _open_file(file.path, manifest.category, manifest.name, manifest.version, file.checksum, tensors)


def open_path(
    path: Path, category: str, backend: str | None = None, tensors: Sequence[TensorSpec] = ()
) -> Dataset:
    """Opens the dataset at ``path``, which no manifest describes.

    Args:
        path: A file or a folder.
        category: The category, such as ``vision``.
        backend: The name of its format, one of ``detection.BACKENDS``; None finds it out.
        tensors: The tensors of the model, whose names are those of the arrays in an ``.npz``.

    Raises:
        DatasetError: It is missing, damaged, or is not what a dataset can be.
        ConfigurationError: The format does not exist.
    """
    if backend is not None:
        if backend not in _READERS:
            raise ConfigurationError(f'unknown data_backend "{backend}"; {suggestion(backend, BACKENDS)}')
        return _opened(path, backend, category, None, None, None, tensors)
    try:
        is_file = path.is_file()
    except OSError as error:
        raise DatasetError(f"dataset {path} cannot be read: {error.strerror or error}") from error
    if is_file:
        return _open_file(path, category, None, None, None, tensors)
    return _opened(path, backend_of(path), category, None, None, None, tensors)


def _open_file(
    path: Path,
    category: str,
    name: str | None,
    version: str | None,
    checksum: str | None,
    tensors: Sequence[TensorSpec],
) -> Dataset:
    """Opens a file that is one of the formats, or that an installed plug-in reads.

    A plug-in registers a ``Dataset`` as an entry point in the group ``inferometer.datasets``; the entry
    point's name is the suffix of its files. ``checksum`` is the file's SHA-256, if it is known.
    """
    suffix = path.suffix.casefold()
    announced = tuple(metadata.entry_points(group=ENTRY_POINTS, name=suffix.removeprefix(".")))
    if not announced or suffix in {".npz", ".zip"}:
        return _opened(path, backend_of(path), category, name, version, checksum, tensors)
    try:
        kind: Callable[..., Dataset] = announced[0].load()
    except IMPORT_FAILURES as error:
        raise DatasetError(
            f"dataset {path}: {announced[0].value} cannot be imported: {one_line(error)}"
        ) from error
    return kind(path, category, checksum=checksum or _digest(path), name=name, version=version)


def _opened(
    path: Path,
    backend: str,
    category: str,
    name: str | None,
    version: str | None,
    checksum: str | None,
    tensors: Sequence[TensorSpec],
) -> Dataset:
    place = place_of(path, backend)
    if checksum is None and backend in _DIGESTED:
        checksum = _digest(place)
    module, _, reader = _READERS[backend].partition(":")
    kind: Callable[..., Dataset] = getattr(import_module(f"{__package__}.{module}"), reader)
    arrays = {"tensors": tensors} if backend == "npz" else {}
    return kind(place, category, checksum=checksum, name=name, version=version, **arrays)


def _digest(path: Path) -> str:
    try:
        return f"{SHA256}:{digest(path)}"
    except ArtifactError as error:
        raise DatasetError(f"dataset {error}") from error
