"""Finding out which format of datasets lies at a path."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import get_args

from inferometer.evaluators.datasets import cifar10, ilsvrc2012, mnist
from inferometer.evaluators.datasets.caffe_lmdb import DATA_FILE
from inferometer.evaluators.datasets.files.record_framing import MAGIC_BYTES
from inferometer.evaluators.datasets.folder import FORMATS, is_image
from inferometer.evaluators.datasets.recordio import SUFFIX
from inferometer.evaluators.datasets.tasks import coco, masks, pairs, voc
from inferometer.evaluators.datasets.tasks.values import is_values_table
from inferometer.manifests.errors import DatasetError, printable
from inferometer.manifests.schema import Backend

BACKENDS: tuple[str, ...] = tuple(filter(None, get_args(Backend)))
"""The names of the formats."""
LOOKED_FOR = (
    f"a folder of class folders with images ({', '.join(FORMATS)}), or images alone, a .zip of the same, a "
    ".rec, an LMDB's data.mdb, an .npz, CIFAR-10's data_batch_1, MNIST's train-images-idx3-ubyte, "
    "ILSVRC2012_img_val.tar or its images, COCO's annotations.json with images, VOC's Annotations with "
    "JPEGImages, folders of images and masks, inputs and targets, or VOC's SegmentationClass, a .csv of "
    "files and numbers, and texts in a .jsonl, .csv, .tsv or SQuAD's .json"
)
_PAIRS = {
    "mask_folder": {masks.IMAGES, masks.MASKS},
    "voc_segmentation": {masks.VOC_IMAGES, masks.VOC_MASKS},
    "paired_folder": {pairs.INPUTS, pairs.TARGETS},
}
"""Folders that are one dataset where they lie beside each other, and no class folders."""
_BEGIN_BYTES = 4096
_SQUAD = re.compile(rb'"(paragraphs|qas|context)"\s*:')
_COCO = re.compile(rb'"(info|licenses|images|annotations|categories)"\s*:')
_PARTS = frozenset({"train", "training", "val", "valid", "validation", "test"})
_LMDB_MAGIC = b"\xde\xc0\xef\xbe"


def backend_of(path: Path) -> str:
    """Returns the name of the format that lies at a path, one of ``BACKENDS``.

    A folder is known by the names in it, a file by its name or else by its first bytes.

    Raises:
        DatasetError: There is nothing, no known format, or more than one.
    """
    try:
        found = _in_folder(path) if path.is_dir() else _of_file(path)
        missing = not found and not path.exists()
    except OSError as error:
        raise DatasetError(f"dataset {path} cannot be read: {error.strerror or error}") from error
    if missing:
        raise DatasetError(f"dataset {path} does not exist; accepted: {LOOKED_FOR}")
    if not found:
        what = "holds no images" if path.is_dir() else "is none that can be read"
        raise DatasetError(f"dataset {path} {what}; accepted: {LOOKED_FOR}")
    if len(found) > 1:
        raise DatasetError(
            f"dataset {path} may be {' or '.join(found)}; name a file in it, or the format as data_backend"
        )
    return found[0]


def may_hold_tensors(path: Path) -> bool:
    """Returns whether what lies at a path may have tensors or texts, instead of images.

    It may not where nothing can be opened.
    """
    try:
        return backend_of(path) in {"npz", "caffe_lmdb", "jsonl", "csv", "squad"}
    except DatasetError:
        return False


def place_of(path: Path, backend: str) -> Path:
    """Returns the path that the reader of a format opens, where ``path`` is a folder with it.

    Raises:
        DatasetError: The folder has no such file, or several.
    """
    try:
        if not path.is_dir() or backend not in _SUFFIXES:
            return path
        suffix = _SUFFIXES[backend]
        names = sorted(each.name for each in path.iterdir() if each.suffix.casefold() == suffix)
    except OSError as error:
        raise DatasetError(f"dataset {path} cannot be read: {error.strerror or error}") from error
    if len(names) == 1 or f"train{suffix}" in names:
        return path / (names[0] if len(names) == 1 else f"train{suffix}")
    if not names:
        raise DatasetError(f"dataset {path} holds no {suffix} file, which {backend} requires")
    shown = ", ".join(map(printable, names[:5])) + (", …" if len(names) > 5 else "")
    raise DatasetError(f"dataset {path} holds {len(names)} {suffix} files; name one of them: {shown}")


_SUFFIXES = {"recordio": SUFFIX, "npz": ".npz", "zip": ".zip"}


def _in_folder(path: Path) -> list[str]:
    """Returns the formats in a folder."""
    with os.scandir(path) as listed:
        entries = {entry.name: entry.is_dir() for entry in listed if not entry.name.startswith(".")}
    folders = {name for name, is_folder in entries.items() if is_folder}
    if found := [backend for backend, names in _PAIRS.items() if names <= folders]:
        return found
    rules: dict[str, Callable[[str, bool], bool]] = {
        "recordio": lambda name, is_folder: not is_folder and name.casefold().endswith(SUFFIX),
        "caffe_lmdb": lambda name, is_folder: not is_folder and name == DATA_FILE,
        "npz": lambda name, is_folder: not is_folder and name.casefold().endswith(".npz"),
        "cifar10": lambda name, is_folder: (
            name in cifar10.FOLDERS if is_folder else cifar10.is_batch(name) or name in cifar10.ARCHIVES
        ),
        "mnist": lambda name, is_folder: not is_folder and mnist.is_images_file(name),
    }
    found = [
        backend
        for backend, rule in rules.items()
        if any(rule(name, folder) for name, folder in entries.items())
    ]
    if of_objects := _of_objects(path, entries):
        found.append(of_objects)
    elif ilsvrc2012.is_validation(path, entries):
        found.append("ilsvrc2012_validation")
    elif any(_is_images(path, name, is_folder, shallow=bool(found)) for name, is_folder in entries.items()):
        found.append("image_folder")
        _refuse_parts(path, [name for name, is_folder in entries.items() if is_folder])
    if not found and any(name.casefold().endswith(".zip") for name in entries):
        found.append("zip")
    return found


def _of_objects(path: Path, entries: Mapping[str, bool]) -> str:
    """Returns the format of a folder with images and their objects, not only the dataset's images."""
    if entries.get(voc.ANNOTATIONS) and entries.get(voc.IMAGES):
        return "voc"
    instances = entries.get(coco.FOLDER) and any((path / coco.FOLDER).glob(coco.INSTANCES))
    return "coco" if entries.get(coco.FILE) is False or instances else ""


def _refuse_parts(path: Path, folders: Sequence[str]) -> None:
    """Raises DatasetError where the folders are parts with class folders each, and no classes."""
    if folders and _PARTS.issuperset(folders) and all(_has_folder(path / name) for name in folders):
        raise DatasetError(
            f"dataset {path} holds the parts {' and '.join(sorted(folders))}; name one of them"
        )


def _has_folder(path: Path) -> bool:
    with os.scandir(path) as listed:
        return any(entry.is_dir() for entry in listed)


def _is_images(path: Path, name: str, is_folder: bool, *, shallow: bool) -> bool:
    """Returns whether a name is that of an image or, unless ``shallow``, of a class folder with one."""
    if not is_folder:
        return is_image(name)
    paths = (file for _, _, names in os.walk(path / name) for file in names) if not shallow else ()
    return any(map(is_image, paths))


def _of_file(path: Path) -> list[str]:
    """Returns the formats that a file may have: one by its name or content, or none."""
    return list(islice(_of_name(path), 1)) or list(islice(_of_content(path), 1))


def _of_name(path: Path) -> Iterator[str]:
    name, suffix = path.name, path.suffix.casefold()
    by_suffix = {
        SUFFIX: "recordio",
        ".npz": "npz",
        ".zip": "zip",
        ".mdb": "caffe_lmdb",
        ".lmdb": "caffe_lmdb",
        ".jsonl": "jsonl",
        ".ndjson": "jsonl",
        ".csv": "csv",
        ".tsv": "csv",
    }
    if not path.is_file():
        if cifar10.is_batch(name) and path.parent.is_file():
            yield "cifar10"
        return
    if is_values_table(path):
        yield "values_csv"
    if masks.is_voc_list(path):
        yield "voc_segmentation"
    if suffix in by_suffix:
        yield by_suffix[suffix]
    if cifar10.is_batch(name) or name in cifar10.ARCHIVES:
        yield "cifar10"
    if mnist.is_images_file(name):
        yield "mnist"
    if voc.is_image_set(path):
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
