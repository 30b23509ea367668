"""Opening a dataset: what a manifest or a path means, by what lies there."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from agent.artifacts import resolve_file
from agent.checksums import SHA256, digest
from evaluators.datasets.archive import ArchiveDataset
from evaluators.datasets.arrays import ArraysDataset
from evaluators.datasets.base import Dataset
from evaluators.datasets.folder import FolderDataset
from manifests.errors import ArtifactError, DatasetError
from manifests.schema import DatasetManifest

if TYPE_CHECKING:
    from agent.artifact_cache import ArtifactCache

_ACCEPTED = "a folder of class folders with images, a zip of the same, or an .npz"


def open_dataset(manifest: DatasetManifest, cache: ArtifactCache | None = None) -> Dataset:
    """Opens the dataset that a manifest describes.

    Args:
        manifest: The dataset.
        cache: Gets what is at a URL; with None, it has to lie beside the manifest.

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
        file = resolve_file(manifest, manifest.path, manifest.checksum, cache=cache)
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
    """Opens a zip or an ``.npz``; ``checksum`` is its SHA-256 where that has been computed."""
    kind: type[ArraysDataset] | type[ArchiveDataset]
    if path.suffix.casefold() == ".npz":
        kind = ArraysDataset
    elif path.suffix.casefold() == ".zip" or (path.is_file() and zipfile.is_zipfile(path)):
        kind = ArchiveDataset
    else:
        raise DatasetError(f"dataset {path} is none that can be read; accepted: {_ACCEPTED}")
    try:
        checksum = checksum or f"{SHA256}:{digest(path)}"
    except ArtifactError as error:
        raise DatasetError(f"dataset {error}") from error
    return kind(path, category, checksum=checksum, name=name, version=version)
