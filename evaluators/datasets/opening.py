"""Opening of datasets by a manifest or a path."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from inferometer.agent.artifacts.checksums import SHA256, digest
from inferometer.agent.artifacts.locations import refer
from inferometer.agent.artifacts.model_files import get_file
from inferometer.evaluators.datasets.archive import ArchiveDataset
from inferometer.evaluators.datasets.arrays import ArraysDataset
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.datasets.folder import FolderDataset
from inferometer.manifests.errors import IMPORT_FAILURES, ArtifactError, DatasetError, one_line
from inferometer.manifests.schema import DatasetManifest

if TYPE_CHECKING:
    from inferometer.agent.artifacts.cache import ArtifactCache

ENTRY_POINTS = "inferometer.datasets"
_ACCEPTED = "a folder of class folders with images, a zip of the same, or an .npz"


def open_dataset(manifest: DatasetManifest, cache: ArtifactCache | None = None) -> Dataset:
    """Opens the dataset that a manifest describes.

    Args:
        manifest: The dataset.
        cache: The cache for downloads; None requires a file beside the manifest.

    Raises:
        DatasetError: It is missing, cannot be downloaded, has another checksum, or is no dataset.
    """
    path = Path(manifest.path) if manifest.source is None else manifest.source.parent / manifest.path
    if path.is_dir():
        if manifest.checksum:
            raise DatasetError(
                f"{manifest.source}: field checksum: {path} is a folder, which has none; leave it out, "
                "or zip the folder"
            )
        return FolderDataset(path, manifest.category, name=manifest.name, version=manifest.version)
    try:
        file = get_file(refer(manifest, "path", manifest.path, manifest.checksum), cache)
    except ArtifactError as error:
        raise DatasetError(str(error)) from error
    return _open_file(file.path, manifest.category, manifest.name, manifest.version, file.checksum)


def open_path(path: Path, category: str) -> Dataset:
    """Opens the dataset at ``path``, which no manifest describes.

    Raises:
        DatasetError: It is missing, or is not what a dataset can be.
    """
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:
        raise DatasetError(f"dataset {path} cannot be read: {error.strerror or error}") from error
    if is_folder:
        return FolderDataset(path, category)
    if not exists:
        raise DatasetError(f"dataset {path} does not exist; accepted: {_ACCEPTED}")
    return _open_file(path, category, None, None, None)


def _open_file(
    path: Path, category: str, name: str | None, version: str | None, checksum: str | None
) -> Dataset:
    """Opens a zip, an ``.npz`` or a file that an installed plug-in reads.

    A plug-in registers a ``Dataset`` as an entry point in the group ``inferometer.datasets``; the entry
    point's name is the suffix of its files. ``checksum`` is the file's SHA-256, if it is known.
    """
    suffix = path.suffix.casefold()
    kind: Callable[..., Dataset]
    if suffix == ".npz":
        kind = ArraysDataset
    elif suffix == ".zip":
        kind = ArchiveDataset
    elif announced := tuple(metadata.entry_points(group=ENTRY_POINTS, name=suffix.removeprefix("."))):
        try:
            kind = announced[0].load()
        except IMPORT_FAILURES as error:
            raise DatasetError(
                f"dataset {path}: {announced[0].value} cannot be imported: {one_line(error)}"
            ) from error
    elif path.is_file() and zipfile.is_zipfile(path):
        kind = ArchiveDataset
    else:
        raise DatasetError(f"dataset {path} is none that can be read; accepted: {_ACCEPTED}")
    try:
        checksum = checksum or f"{SHA256}:{digest(path)}"
    except ArtifactError as error:
        raise DatasetError(f"dataset {error}") from error
    return kind(path, category, checksum=checksum, name=name, version=version)
