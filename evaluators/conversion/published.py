"""Datasets that anyone may download, with the checksums from their publishers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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


_MNIST_PATHS = {"training": "train-images-idx3-ubyte.gz", "validation": "t10k-images-idx3-ubyte.gz"}
PUBLISHED = (
    PublishedDataset(
        name="cifar10",
        base_url="https://www.cs.toronto.edu/~kriz",
        files={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        paths={"training": "cifar-10-binary.tar.gz", "validation": "cifar-10-binary.tar.gz/test_batch.bin"},
        size_bytes=170_052_171,
        license="none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    ),
    PublishedDataset(
        name="fashion_mnist",
        base_url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        files={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        paths=_MNIST_PATHS,
        size_bytes=30_878_645,
        license="MIT",
    ),
    PublishedDataset(
        name="mnist",
        base_url="https://ossci-datasets.s3.amazonaws.com/mnist",
        files={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        paths=_MNIST_PATHS,
        size_bytes=11_594_722,
        license="CC BY-SA 3.0",
    ),
)


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
