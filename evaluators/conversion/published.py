"""Datasets that anyone may download, with the checksums from their publishers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from inferometer.agent.artifacts.downloads import check_file
from inferometer.agent.artifacts.files import ArtifactCache
from inferometer.manifests.errors import ArtifactError, UnknownDatasetError, explained


@dataclass(frozen=True, slots=True)
class PublishedDataset:
    """A dataset that can be downloaded.

    Attributes:
        base_url: The URL of the folder of its files.
        files: The MD5 checksum of each file, by name.
        paths: The paths to open for ``training`` and ``validation``, relative to the dataset's folder.
        size_bytes: The size of the download.
        license: The terms under which it is published.
    """

    name: str
    base_url: str
    files: Mapping[str, str]
    paths: Mapping[str, str]
    size_bytes: int
    license: str


_TABLE = yaml.safe_load(Path(__file__).with_name("published.yml").read_text(encoding="utf-8"))
PUBLISHED = tuple(PublishedDataset(**each) for each in _TABLE)


def find_published(name: str) -> PublishedDataset:
    """Returns a dataset by its name; raises UnknownDatasetError if there is none."""
    known = {dataset.name: dataset for dataset in PUBLISHED}
    if name.casefold() not in known:
        raise UnknownDatasetError.of(name, known)
    return known[name.casefold()]


def fetch(
    dataset: PublishedDataset, folder: Path, cache: ArtifactCache, base_url: str | None = None
) -> Iterator[tuple[Path, bool]]:
    """Puts the files of a dataset into a folder, checks them, and yields each and whether it was downloaded.

    Args:
        dataset: The dataset.
        folder: The folder, which is created.
        cache: Downloads the files.
        base_url: The URL of a mirror of the files; None means the publisher's.

    Raises:
        ArtifactUnavailableError: A file cannot be downloaded.
        ArtifactError: A file has the wrong checksum, or cannot be written.
    """
    for name, checksum in dataset.files.items():
        place = folder / name
        if place.is_file():
            check_file(place, checksum, f"the publisher of {dataset.name}")
            yield place, False
            continue
        url = f"{(base_url or dataset.base_url).rstrip('/')}/{name}"
        found = cache.fetch(url, checksum, f"the publisher of {dataset.name}")
        _put(found.path, place)
        yield place, found.downloaded


def _put(cached: Path, place: Path) -> None:
    """Links a file from the cache to a path, or copies it if it cannot be linked."""
    new = place.with_name(f".{place.name}.new")
    with explained(ArtifactError, f"{place}: cannot be written"):
        place.parent.mkdir(parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        try:
            os.link(cached, new)
        except OSError:
            shutil.copyfile(cached, new)
        new.replace(place)
