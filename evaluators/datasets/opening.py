"""Opens datasets from a manifest, a path or a user's choice, and detects their formats."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from importlib import metadata
from itertools import chain, islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.artifacts.downloads import SHA256, digest
from inferometer.agent.artifacts.files import ArtifactCache, get_file
from inferometer.agent.artifacts.locations import refer
from inferometer.evaluators.datasets import annotated_images, arrays, coco, ilsvrc2012, small_images, tables
from inferometer.evaluators.datasets.base import Dataset, Subset
from inferometer.evaluators.datasets.caffe_lmdb import DATA_FILE, LmdbDataset
from inferometer.evaluators.datasets.files import FORMATS, is_image
from inferometer.evaluators.datasets.folder import ArchiveDataset, FolderDataset, UrlsDataset
from inferometer.evaluators.datasets.recordio import MAGIC_BYTES, SUFFIX, RecordDataset
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import (
    IMPORT_FAILURES,
    ArtifactError,
    ConfigurationError,
    DatasetError,
    explained,
    one_line,
    printable,
    suggestion,
)
from inferometer.manifests.inputs import TensorSpec
from inferometer.manifests.schema import Backend, DatasetManifest, ModelManifest

BACKENDS: tuple[str, ...] = tuple(filter(None, get_args(Backend)))
"""The names of the formats."""
_LOOKED_FOR = (
    f"a folder of class folders with images ({', '.join(FORMATS)}), or images alone, a .zip of the same, a "
    ".rec, an LMDB's data.mdb, an .npz, CIFAR-10's data_batch_1, MNIST's train-images-idx3-ubyte, "
    "ILSVRC2012_img_val.tar or its images, COCO's annotations.json with images, VOC's Annotations with "
    "JPEGImages, folders of images and masks, inputs and targets, or VOC's SegmentationClass, a .csv of "
    "files and numbers, and tables or texts in a .jsonl, .csv, .tsv or SQuAD's .json"
)
_PAIRS = {
    "mask_folder": {annotated_images.IMAGES, annotated_images.MASKS},
    "voc_segmentation": {annotated_images.VOC_IMAGES, annotated_images.VOC_MASKS},
    "paired_folder": {annotated_images.INPUTS, annotated_images.TARGETS},
}
"""Folders that are parts of one dataset if they are next to each other, rather than class folders."""
_BEGIN_BYTES = 4096
_SQUAD = re.compile(rb'"(paragraphs|qas|context)"\s*:')
_COCO = re.compile(rb'"(info|licenses|images|annotations|categories)"\s*:')
_PARTS = frozenset({"train", "training", "val", "valid", "validation", "test"})
_LMDB_MAGIC = b"\xde\xc0\xef\xbe"


def backend_of(path: Path) -> str:
    """Returns the name of the format of the dataset at a path, one of ``BACKENDS``.

    A folder is recognised by the names in it; a file by its name, or else by its first bytes.

    Raises:
        DatasetError: Nothing is there, or it has no known format or fits more than one.
    """
    with explained(DatasetError, f"dataset {path} cannot be read"):
        of_file = islice(chain(_of_name(path), _of_content(path)), 1)  # one by its name or content
        found = _in_folder(path) if path.is_dir() else list(of_file)
        missing = not found and not path.exists()
    if missing:
        raise DatasetError(f"dataset {path} does not exist; accepted: {_LOOKED_FOR}")
    if not found:
        what = "holds no images" if path.is_dir() else "is none that can be read"
        raise DatasetError(f"dataset {path} {what}; accepted: {_LOOKED_FOR}")
    if len(found) > 1:
        raise DatasetError(
            f"dataset {path} may be {' or '.join(found)}; name a file in it, or the format as data_backend"
        )
    return found[0]


def may_hold_tensors(path: Path) -> bool:
    """Returns whether the dataset at a path may contain tensors or texts instead of images.

    Returns False if nothing can be opened there.
    """
    try:
        return backend_of(path) in {"npz", "caffe_lmdb", "jsonl", "csv", "squad", "table"}
    except DatasetError:
        return False


def _place_of(path: Path, backend: str) -> Path:
    """Returns the path that the reader of a format opens; ``path`` may be a folder that contains it."""
    with explained(DatasetError, f"dataset {path} cannot be read"):
        if not path.is_dir() or backend not in _SUFFIXES:
            return path
        suffix = _SUFFIXES[backend]
        names = sorted(each.name for each in path.iterdir() if each.suffix.casefold() == suffix)
    if len(names) == 1 or f"train{suffix}" in names:
        return path / (names[0] if len(names) == 1 else f"train{suffix}")
    if not names:
        raise DatasetError(f"dataset {path} holds no {suffix} file, which {backend} requires")
    shown = ", ".join(map(printable, names[:5])) + (", …" if len(names) > 5 else "")
    raise DatasetError(f"dataset {path} holds {len(names)} {suffix} files; name one of them: {shown}")


_SUFFIXES = {"recordio": SUFFIX, "npz": ".npz", "zip": ".zip"}
_BY_SUFFIX = {suffix: backend for backend, suffix in _SUFFIXES.items()} | {
    ".mdb": "caffe_lmdb",
    ".lmdb": "caffe_lmdb",
}


def _in_folder(path: Path) -> list[str]:
    """Returns the formats of the datasets in a folder."""
    with os.scandir(path) as listed:
        entries = {entry.name: entry.is_dir() for entry in listed if not entry.name.startswith(".")}
    folders = {name for name, is_folder in entries.items() if is_folder}
    if found := [backend for backend, names in _PAIRS.items() if names <= folders]:
        return found
    files = entries.keys() - folders
    is_there = {
        "recordio": any(name.casefold().endswith(SUFFIX) for name in files),
        "caffe_lmdb": DATA_FILE in files,
        "npz": any(name.casefold().endswith(".npz") for name in files),
        "cifar10": any(small_images.is_batch(name) or name in small_images.ARCHIVES for name in files)
        or not folders.isdisjoint(small_images.FOLDERS),
        "mnist": any(map(small_images.is_images_file, files)),
    }
    found = [backend for backend, there in is_there.items() if there]
    if annotated_images.ANNOTATIONS in folders and annotated_images.VOC_IMAGES in folders:
        found.append("voc")
    elif coco.FILE in files or (coco.FOLDER in folders and any((path / coco.FOLDER).glob(coco.INSTANCES))):
        found.append("coco")
    elif ilsvrc2012.is_validation(path, entries):
        found.append("ilsvrc2012_validation")
    elif any(_is_images(path, name, is_folder, shallow=bool(found)) for name, is_folder in entries.items()):
        found.append("image_folder")
        _refuse_parts(path, folders)
    if not found and any(name.casefold().endswith(".zip") for name in entries):
        found.append("zip")
    return found


def _refuse_parts(path: Path, folders: Set[str]) -> None:
    """Raises DatasetError if the folders are parts of a dataset, with class folders in each."""
    parts = [path / name for name in sorted(folders & _PARTS)]
    if parts and folders <= _PARTS and all(any(map(Path.is_dir, part.iterdir())) for part in parts):
        shown = " and ".join(part.name for part in parts)
        raise DatasetError(f"dataset {path} holds the parts {shown}; name one of them")


def _is_images(path: Path, name: str, is_folder: bool, *, shallow: bool) -> bool:
    """Returns whether a name belongs to an image or, unless ``shallow``, to a class folder with one."""
    if not is_folder:
        return is_image(name)
    paths = (file for _, _, names in os.walk(path / name) for file in names) if not shallow else ()
    return any(map(is_image, paths))


def _of_name(path: Path) -> Iterator[str]:
    name, suffix = path.name, path.suffix.casefold()
    if not path.is_file():
        if small_images.is_batch(name) and path.parent.is_file():
            yield "cifar10"
        return
    if suffix in tables.ROW_SUFFIXES:
        yield tables.format_of(path)
    if annotated_images.is_voc_list(path):
        yield "voc_segmentation"
    if suffix in _BY_SUFFIX:
        yield _BY_SUFFIX[suffix]
    if small_images.is_batch(name) or name in small_images.ARCHIVES:
        yield "cifar10"
    if small_images.is_images_file(name):
        yield "mnist"
    if annotated_images.is_image_set(path):
        yield "voc"
    if name == ilsvrc2012.ARCHIVE:
        yield "ilsvrc2012_validation"


def _of_content(path: Path) -> Iterator[str]:
    if not path.is_file():
        return
    with path.open("rb") as file:
        begin = file.read(_BEGIN_BYTES)
    if begin.startswith(MAGIC_BYTES):
        yield "recordio"
    if begin[16:20] == _LMDB_MAGIC:
        yield "caffe_lmdb"
    if zipfile.is_zipfile(path):
        yield "zip"
    if path.suffix.casefold() == ".json" and _SQUAD.search(begin):
        yield "squad"
    elif path.suffix.casefold() == ".json" and _COCO.search(begin):
        yield "coco"


ENTRY_POINTS = "inferometer.datasets"
_READERS: Mapping[str, Callable[..., Dataset]] = {
    "recordio": RecordDataset,
    "caffe_lmdb": LmdbDataset,
    "image_folder": FolderDataset,
    "npz": arrays.ArraysDataset,
    "zip": ArchiveDataset,
    "ilsvrc2012_validation": ilsvrc2012.ValidationDataset,
    "cifar10": small_images.CifarDataset,
    "mnist": small_images.IdxDataset,
    "coco": coco.CocoDataset,
    "voc": annotated_images.VocDataset,
    "mask_folder": annotated_images.MaskFolderDataset,
    "voc_segmentation": annotated_images.VocSegmentationDataset,
    "paired_folder": annotated_images.PairedFolderDataset,
    "values_csv": tables.ValuesTableDataset,
    "table": tables.TableDataset,
    "jsonl": tables.JsonLinesDataset,
    "csv": tables.CsvDataset,
    "squad": tables.SquadDataset,
}
_DIGESTED = frozenset({"npz", "zip", "values_csv", "table", "jsonl", "csv", "squad"})
"""The formats whose files are read when they are opened; others may be too large to read twice."""


def open_dataset(
    manifest: DatasetManifest, cache: ArtifactCache | None = None, tensors: Sequence[TensorSpec] = ()
) -> Dataset:
    """Opens the dataset that a manifest describes.

    Args:
        manifest: The dataset.
        cache: The cache for downloads; None requires a file beside the manifest.
        tensors: The tensors of the model, which an ``.npz`` or a table has under their names.

    Raises:
        DatasetError: It is missing, cannot be downloaded, has the wrong checksum, or is not a dataset.
    """
    if not manifest.path:
        raise DatasetError(
            f"dataset {manifest.name}: {manifest.obtain}; then name the place with dataset_path, or in the "
            f"configuration file under datasets: {manifest.name}"
        )
    path = Path(manifest.path) if manifest.source is None else manifest.source.parent / manifest.path
    named = {"name": manifest.name, "version": manifest.version}
    if manifest.obtain or manifest.backend:
        backend = manifest.backend or backend_of(path)
        if not manifest.checksum and (path.exists() or manifest.obtain):
            return _opened(path, manifest.category, tensors, backend, **named)
    if path.is_dir():
        if manifest.checksum:
            raise DatasetError(
                f"{manifest.source}: field checksum: {path} is a folder, which has none; leave it out, "
                "or zip the folder"
            )
        return _opened(path, manifest.category, tensors, **named)
    try:
        file = get_file(refer(manifest, "path", manifest.path, manifest.checksum), cache)
    except ArtifactError as error:
        raise DatasetError(str(error)) from error
    return _opened(file.path, manifest.category, tensors, checksum=file.checksum, **named)


def open_path(
    path: Path, category: str, backend: str | None = None, tensors: Sequence[TensorSpec] = ()
) -> Dataset:
    """Opens the dataset at ``path``, which no manifest describes.

    Args:
        path: A file or a folder.
        category: The category, such as ``vision``.
        backend: The name of its format, one of ``BACKENDS``; None detects it.
        tensors: The tensors of the model, which an ``.npz`` or a table has under their names.

    Raises:
        DatasetError: It is missing, damaged, or not a dataset.
        ConfigurationError: The format does not exist.
    """
    if backend is not None and backend not in _READERS:
        raise ConfigurationError(f'unknown data_backend "{backend}"; {suggestion(backend, BACKENDS)}')
    return _opened(path, category, tensors, backend)


def _opened(
    path: Path,
    category: str,
    tensors: Sequence[TensorSpec],
    backend: str | None = None,
    *,
    checksum: str | None = None,
    **named: str | None,
) -> Dataset:
    """Opens a dataset in one of the formats, or in one that an installed plug-in reads.

    A plug-in registers a ``Dataset`` as an entry point in the group ``inferometer.datasets``; the entry
    point's name is the suffix of its files. ``backend`` is the format, None to detect it; ``checksum`` is the
    file's SHA-256, if it is known; ``named`` is the name and the version of the manifest, if there is one.
    """
    suffix = path.suffix.casefold().removeprefix(".")
    with explained(DatasetError, f"dataset {path} cannot be read"):
        may_be_announced = backend is None and suffix not in {"npz", "zip"} and path.is_file()
    points = metadata.entry_points(group=ENTRY_POINTS, name=suffix) if may_be_announced else ()
    if announced := next(iter(points), None):
        try:
            kind: Callable[..., Dataset] = announced.load()
        except IMPORT_FAILURES as error:
            raise DatasetError(
                f"dataset {path}: {announced.value} cannot be imported: {one_line(error)}"
            ) from error
        unnamed: dict[str, str | None] = {"name": None, "version": None}
        return kind(path, category, checksum=checksum or _digest(path), **unnamed | named)
    backend = backend or backend_of(path)
    place = _place_of(path, backend)
    if checksum is None and backend in _DIGESTED:
        checksum = _digest(place)
    of_arrays = {"tensors": tensors} if backend in {"npz", "table"} else {}
    return _READERS[backend](place, category, checksum=checksum, **named, **of_arrays)


def _digest(path: Path) -> str:
    try:
        return f"{SHA256}:{digest(path)}"
    except ArtifactError as error:
        raise DatasetError(f"dataset {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetChoice:
    """The dataset of an evaluation; if no name, path or list is given, the one that the model names.

    Attributes:
        name: The name in its manifest.
        path: A dataset in one of the formats of ``BACKENDS``; if a name is given too, the place of that
            dataset, which the user has obtained.
        backend: The name of its format; None detects it.
        category: The category that a named dataset must have, and one at a path gets; None means any.
        urls_path: A file with one URL or path per line.
        duplicates: The number of passes over that list.
        synthetic: The number of random tensors to use instead, drawn from ``seed``; for measuring only speed.
        array: Inputs in memory instead: samples × the shape of the model's input; for a model with several
            inputs, an array for each, by name or in the model's order.
        sample_ids: The ids of the samples to use; None means all.
        sequence_length: The size of dynamic axes in ``synthetic`` inputs; None means the model's own.

    Raises:
        ConfigurationError: More than one dataset is named, or an option does not apply to it.
    """

    name: str | None = None
    path: Path | None = None
    backend: str | None = None
    category: str | None = None
    urls_path: Path | None = None
    duplicates: int = 1
    synthetic: int | None = None
    seed: int = 0
    array: NDArray[Any] | Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]] | None = field(
        default=None, compare=False
    )
    sample_ids: tuple[str, ...] | None = None
    sequence_length: int | None = None

    def __post_init__(self) -> None:
        if self.sample_ids is not None and (self.synthetic is not None or self.array is not None):
            raise ConfigurationError("sample_ids apply only to a dataset; leave them out")
        if self.backend and not self.path:
            raise ConfigurationError("data_backend is the format of dataset_path; give both")
        if self.synthetic is not None and (self.is_named or self.array is not None):
            raise ConfigurationError("synthetic needs no dataset; leave out dataset_name and dataset_path")
        if self.array is not None and self.is_named:
            raise ConfigurationError("inputs are already the dataset; leave out the named one")

    @property
    def samples(self) -> int | None:
        """The number of inputs in memory; None if they are not in memory."""
        if self.array is None or isinstance(self.array, np.ndarray):
            return None if self.array is None else len(self.array)
        inputs = self.array.values() if isinstance(self.array, Mapping) else self.array
        return min(map(len, inputs), default=0)

    @property
    def is_named(self) -> bool:
        """Whether the user has named a dataset."""
        return bool(self.name or self.path or self.urls_path)

    @property
    def holds_images(self) -> bool:
        """Whether it has only images; an .npz, an LMDB or the dataset of a manifest may contain tensors."""
        return bool(self.urls_path) or (self.path is not None and not may_hold_tensors(self.path))

    def open(
        self, catalog: Catalog, cache: ArtifactCache | None, tensors: Sequence[TensorSpec] = ()
    ) -> Dataset | None:
        """Opens the dataset; returns None if the model is to name it.

        Args:
            catalog: The datasets.
            cache: Downloads a dataset from its URL; None if all are on this machine.
            tensors: The tensors of the model, which an ``.npz`` or a table has under their names.

        Raises:
            UnknownDatasetError: The catalogue has no dataset of that name and category.
            DatasetError: The dataset cannot be opened.
            ConfigurationError: Both a path and the name of a dataset that has its own path are given.
        """
        if self.urls_path:
            return self._subset(UrlsDataset(self.urls_path, duplicate_input=self.duplicates))
        if self.name and self.path:
            obtained = (dataset.name.casefold() for dataset in catalog.datasets if dataset.obtain)
            if self.name.casefold() not in obtained:
                raise ConfigurationError(
                    "dataset_path and dataset_name both name a dataset; give one of them"
                )
        if self.name:
            manifest = catalog.find_dataset(self.name, category=self.category)
            manifest = manifest.at(self.path) if self.path else manifest
            return self._subset(open_dataset(manifest, cache, tensors))
        if self.path:
            return self._subset(open_path(self.path, self.category or "vision", self.backend, tensors))
        return None

    def _subset(self, dataset: Dataset) -> Dataset:
        """Returns the chosen samples of a dataset; closes the dataset if that fails."""
        if self.sample_ids is None:
            return dataset
        try:
            return Subset(dataset, self.sample_ids)
        except DatasetError:
            dataset.close()
            raise

    def open_early(self, catalog: Catalog, cache: ArtifactCache | None) -> Dataset | None:
        """Opens the dataset, so that errors in it are found before a model is loaded; see ``open``.

        Returns None if the model names it, or if only the model knows its arrays or columns.
        """
        place, backend = self.path if self.path is not None and self.path.is_file() else Path(), self.backend
        if self.name and not self.path and not self.urls_path:
            manifest = catalog.find_dataset(self.name, category=self.category)
            folder = manifest.source.parent if manifest.source else Path()
            place, backend = folder / manifest.path, manifest.backend
        if place.suffix.casefold() in tables.ROW_SUFFIXES:
            backend = backend or tables.format_of(place)
        of_model = place.suffix.casefold() == ".npz" or backend == "table"
        return None if of_model else self.open(catalog, cache)

    def open_for(self, model: ModelManifest, catalog: Catalog, cache: ArtifactCache | None) -> Dataset:
        """Opens the dataset or, if none is chosen, the one that a model's manifest names. See ``open``.

        Raises:
            ConfigurationError: The manifest names no dataset.
            DatasetError: Inputs in memory do not fit the model.
        """
        tensors = model.tensors
        if self.synthetic is not None:
            return arrays.SyntheticDataset(tensors, self.synthetic, self.seed, self.sequence_length)
        if isinstance(self.array, np.ndarray) and len(tensors) == 1:
            return arrays.ArrayInputs(self.array, tensors[0])
        if self.array is not None:
            inputs = (self.array,) if isinstance(self.array, np.ndarray) else self.array
            return arrays.NamedArrayInputs(inputs, tensors)
        if (chosen := self.open(catalog, cache, tensors)) is not None:
            return chosen
        if model.dataset is None:
            known = ", ".join(dict.fromkeys(dataset.name for dataset in catalog.datasets))
            raise ConfigurationError(
                f"model {model.name} names no dataset; give dataset_name (known: {known}) or dataset_path, "
                "or, to measure only its speed, synthetic"
            )
        dataset = catalog.find_dataset(model.dataset, category=self.category)
        return self._subset(open_dataset(dataset, cache, tensors))
