"""Datasets in COCO's JSON: images with objects, their boxes and masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.datasets.files.json_text import key, number, numbers, parse_json, shown
from inferometer.evaluators.datasets.folder import read_image
from inferometer.evaluators.datasets.truths import Objects, Polygons, RunLengths
from inferometer.evaluators.tasks.coco_results import run_lengths
from inferometer.manifests.errors import DatasetError, one_line, printable

FILE = "annotations.json"
FOLDER = "annotations"
INSTANCES = "instances_*.json"
_PREFIX = "instances_"
_SHOWN = 3
_MOST_PIXELS_OF_A_SIDE = 100_000


@dataclass(frozen=True, slots=True)
class _Image:
    """An image of the file: its name, size and objects."""

    number: Any
    path: Path
    truth: Objects


class CocoDataset(Dataset):
    """The images of a file in COCO's format, in its order; a sample's id is COCO's number of the image.

    The path is the file, or a folder with ``annotations.json`` or with one ``annotations/instances_*.json``.
    Images lie beside the file, in ``images``, or, for ``instances_val2017.json``, in ``val2017``, beside the
    folder of the file too. ``path`` is the file; the other arguments are those of ``ArchiveDataset``.

    Attributes:
        categories: The name of each class by its number.

    Raises:
        DatasetError: The file cannot be read or is damaged, an annotation contradicts it, or the folder of
            the images is not there.
    """

    backend = "coco"

    def __init__(
        self,
        path: Path,
        category: str,
        *,
        checksum: str | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        self._path = file = annotation_file(path)
        content = _content(file)
        self.categories = _categories(file, content)
        images = _images(file, content)
        objects = _objects_by_image(file, content, images, self.categories)
        folder = _image_folder(file, [name for name, _, _ in images.values()])
        self._images = [
            _Image(number, folder / file_name, _truth(objects.get(number, []), height, width, number))
            for number, (file_name, height, width) in images.items()
        ]
        super().__init__(
            DatasetIdentity(category, name or str(path), version, checksum, len(self._images)),
        )

    def __iter__(self) -> Iterator[Sample]:
        return map(self.sample, range(len(self)))

    def sample(self, index: int) -> Sample:
        """Returns a sample, whose image is read later."""
        image = self._images[index]
        return Sample(printable(str(image.number)), partial(read_image, image.path), truth=image.truth)

    def labels(self) -> frozenset[str]:
        """Returns no names: an image has no class of its own."""
        return frozenset()

    def files(self) -> Iterator[Path]:
        """Yields the file of the annotations, and those of the images."""
        yield self._path
        yield from (image.path for image in self._images)


def annotation_file(path: Path) -> Path:
    """Returns the file of the annotations in a folder, or the path itself if it is not a folder.

    Raises:
        DatasetError: The folder has none, or several.
    """
    if not path.is_dir():
        return path
    if (path / FILE).is_file():
        return path / FILE
    found = sorted((path / FOLDER).glob(INSTANCES))
    if len(found) == 1:
        return found[0]
    if not found:
        raise DatasetError(f"dataset {path} holds neither {FILE} nor {FOLDER}/{INSTANCES}")
    shown = ", ".join(printable(each.name) for each in found[:_SHOWN])
    raise DatasetError(f"dataset {path} holds {len(found)} files of annotations; name one of them: {shown}")


def _content(file: Path) -> Mapping[str, Any]:
    try:
        content = parse_json(file.read_bytes())
    except OSError as error:
        raise DatasetError(f"{file}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise DatasetError(f"{file}: {error}") from error
    for name in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(name), list):
            raise DatasetError(f"{file}: has no list of {name}, as a dataset in COCO's format has")
    found: Mapping[str, Any] = content
    return found


def _categories(file: Path, content: Mapping[str, Any]) -> Mapping[Any, str]:
    found: dict[Any, str] = {}
    names: set[str] = set()
    for place, entry in enumerate(content["categories"]):
        number = entry.get("id") if isinstance(entry, dict) else None
        if not _is_key(number) or number in found:
            raise DatasetError(f"{file}: category {place} has no id of its own")
        name = entry.get("name", str(number))
        if not isinstance(name, str) or not name.strip() or printable(name) in names:
            raise DatasetError(f"{file}: category {number} has no name of its own")
        found[number] = printable(name)
        names.add(found[number])
    return found


def _is_key(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _images(file: Path, content: Mapping[str, Any]) -> dict[Any, tuple[str, int, int]]:
    """Returns the name, height and width of each image by its number."""
    found: dict[Any, tuple[str, int, int]] = {}
    texts: set[str] = set()
    for place, entry in enumerate(content["images"]):
        number = entry.get("id") if isinstance(entry, dict) else None
        if not _is_key(number) or printable(str(number)) in texts:  # 1 and "1" are one id of a sample
            raise DatasetError(f"{file}: image {place} has no id of its own")
        texts.add(printable(str(number)))
        name, height, width = (entry.get(each) for each in ("file_name", "height", "width"))
        if not isinstance(name, str) or not name:
            raise DatasetError(f"{file}: image {printable(str(number))} has no file_name")
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\0" in name:
            raise DatasetError(
                f"{file}: image {printable(str(number))}: file_name {printable(name)} leads out of the folder"
            )
        if not all(type(side) is int and 0 < side <= _MOST_PIXELS_OF_A_SIDE for side in (height, width)):
            raise DatasetError(f"{file}: image {printable(str(number))} has no height and width in pixels")
        found[number] = name, height, width
    return found


def _image_folder(file: Path, names: Sequence[str]) -> Path:
    """Returns the folder of the images: that which holds the first of them that is found."""
    split = file.stem.removeprefix(_PREFIX) if file.stem.startswith(_PREFIX) else ""
    roots = (file.parent, file.parent.parent) if file.parent.name == FOLDER else (file.parent,)
    folders = [root / part for root in roots for part in ("images", split, f"images/{split}", "")]
    folders = list(dict.fromkeys(folders))
    try:
        found = next((each for each in folders if names and (each / names[0]).is_file()), None)
        if found is None and names:
            found = next((each for each in folders if any((each / name).is_file() for name in names)), None)
    except OSError as error:
        raise DatasetError(f"{file}: its images cannot be found: {error.strerror or error}") from error
    if found is None and names:
        shown = ", ".join(map(str, folders))
        raise DatasetError(f"{file}: {printable(names[0])} is in none of {shown}; put the images into images")
    return found or file.parent


_Row = tuple[str, tuple[float, float, float, float], float, bool, RunLengths | Polygons | None]


def _objects_by_image(
    file: Path,
    content: Mapping[str, Any],
    images: Mapping[Any, tuple[str, int, int]],
    categories: Mapping[Any, str],
) -> Mapping[Any, Sequence[_Row]]:
    found: dict[Any, list[_Row]] = {}
    for place, entry in enumerate(content["annotations"]):
        known = entry.get("id") if isinstance(entry, dict) else None
        named = f"annotation {printable(str(known))}" if _is_key(known) else f"annotation number {place}"
        try:
            if not isinstance(entry, dict):
                raise ValueError("is no object")
            if missing := [name for name in ("image_id", "category_id", "bbox") if name not in entry]:
                raise ValueError(f"has no {missing[0]}")
            image = key(entry["image_id"], "image_id")
            if image not in images:
                raise ValueError(f"image_id {printable(str(image))} is none of the images")
            category = key(entry["category_id"], "category_id")
            if category not in categories:
                raise ValueError(f"category_id {printable(str(category))} is none of the categories")
            found.setdefault(image, []).append(_row(entry, categories[category], *images[image][1:]))
        except ValueError as error:
            raise DatasetError(f"{file}: {named}: {error}") from error
    return found


def _row(entry: Mapping[str, Any], category: str, height: int, width: int) -> _Row:
    """Returns an object; raises ValueError for any other value."""
    box = numbers(entry["bbox"], "bbox")
    if len(box) != 4 or min(box[2:]) < 0:
        raise ValueError(f"bbox {one_line(entry['bbox'], 60)} is not left, top, width and height")
    left, top, across, down = box
    if left > width or top > height or left + across < 0 or top + down < 0:
        raise ValueError(f"bbox {one_line(entry['bbox'], 60)} is outside of the {width} × {height} pixels")
    area = number(entry.get("area", across * down), "area")
    if area < 0:
        raise ValueError(f"area is {area}")
    crowd = entry.get("iscrowd", 0)
    if not isinstance(crowd, int) or crowd not in (0, 1):
        raise ValueError(f"iscrowd is {shown(crowd)}; allowed: 0 or 1")
    return (
        category,
        (left, top, across, down),
        area,
        bool(crowd),
        _mask(entry.get("segmentation"), height, width),
    )


def _mask(written: Any, height: int, width: int) -> RunLengths | Polygons | None:
    if written in (None, []):
        return None
    if isinstance(written, dict):
        mask = run_lengths(written)
        if (mask.height, mask.width) != (height, width):
            raise ValueError(
                f"its mask has {mask.height} × {mask.width} pixels, and the image {height} × {width}"
            )
        return mask
    if not isinstance(written, list):
        raise ValueError(f"segmentation is {shown(written)}; accepted: run lengths, or polygons")
    rings = tuple(tuple(numbers(ring, "a polygon of segmentation")) for ring in written)
    for ring in rings:
        if len(ring) < 6 or len(ring) % 2:
            raise ValueError("segmentation has a polygon that is not x and y of three or more points")
        # pycocotools takes memory for each pixel along a polygon
        if max(map(abs, ring[::2])) > 2 * width or max(map(abs, ring[1::2])) > 2 * height:
            raise ValueError(f"segmentation has a polygon far outside of the {width} × {height} pixels")
    return Polygons(rings)


def _truth(rows: Sequence[_Row], height: int, width: int, image: int | str) -> Objects:
    masks = tuple(row[4] for row in rows if row[4] is not None)
    return Objects(
        height,
        width,
        np.array([row[1] for row in rows], np.float64).reshape(-1, 4),
        tuple(row[0] for row in rows),
        np.array([row[2] for row in rows], np.float64),
        np.array([row[3] for row in rows], np.bool_),
        masks if len(masks) == len(rows) else None,
        image,
    )
