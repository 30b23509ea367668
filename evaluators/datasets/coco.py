"""COCO's format for objects: datasets in its JSON, and the files of results that other tools write.

A dataset consists of images with objects, and the boxes and masks of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple, TypeGuard

import numpy as np

from inferometer.agent.tasks.predictions import Detections, Instances, Predictions, areas, compressed
from inferometer.evaluators.datasets.base import (
    Federated,
    Objects,
    Polygons,
    RunLengths,
    Sample,
    StoredDataset,
)
from inferometer.evaluators.datasets.files import key, number, numbers, read_image, read_json, shown
from inferometer.manifests.errors import DatasetError, explained, one_line, printable, suggestion

_FAR = 1e9
_MOST_PIXELS_OF_A_SIDE = 100_000


class Annotation(NamedTuple):
    """An object from the ground truth or from a prediction, in COCO's format.

    Attributes:
        image: The index of its image.
        category: The index of its class.
        box: Left, top, width and height in pixels; None for the box around the mask.
        area: The area in pixels.
        mask: Its compressed run lengths; None if it has only a box.
        score: The score of a prediction.
    """

    image: int
    category: int
    box: tuple[float, float, float, float] | None
    area: float
    mask: RunLengths | None = None
    crowd: bool = False
    score: float = 0.0

    def as_coco(self, number: int) -> dict[str, Any]:
        """Returns the object in pycocotools' form; ``number`` counts from 1, as 0 means no match there."""
        found: dict[str, Any] = {
            "id": number,
            "image_id": self.image,
            "category_id": self.category,
            "bbox": self.box and list(self.box),
            "area": self.area,
            "iscrowd": int(self.crowd),
            "ignore": int(self.crowd),
            "score": self.score,
        }
        if self.mask is not None:
            size = [self.mask.height, self.mask.width]
            found["segmentation"] = {"size": size, "counts": self.mask.counts}
        return found


@dataclass(frozen=True, slots=True, eq=False)
class CocoResults(Predictions):
    """The objects in one image as another tool wrote them: in float64, and in COCO's format.

    Attributes:
        objects: The objects in the order of the file, which decides among equal scores; their image is 0.
    """

    kind: ClassVar[str] = "coco_results"
    objects: tuple[Annotation, ...]

    def __len__(self) -> int:
        return 1

    def row(self, place: int) -> CocoResults:
        """Returns the objects, which all belong to one image."""
        del place
        return self


def annotations_of(prediction: Detections | Instances | CocoResults, image: int) -> Iterator[Annotation]:
    """Yields the objects in a one-row prediction, the most certain first if a model made it.

    Args:
        prediction: A prediction of one row.
        image: The index of the image.

    Raises:
        ValueError: A mask is damaged.
    """
    if isinstance(prediction, CocoResults):
        yield from (each._replace(image=image) for each in prediction.objects)
        return
    boxes = prediction.boxes.astype(np.float64)
    boxes[:, 2:] -= boxes[:, :2]
    masks: list[RunLengths | None] = [None] * len(boxes)
    sizes = (boxes[:, 2] * boxes[:, 3]).tolist()
    if isinstance(prediction, Instances):
        contents = prediction.run_lengths()
        height, width = prediction.sizes[0].tolist()
        masks = [RunLengths(height, width, content) for content in contents]
        sizes = areas(contents, height, width)
    rows = zip(
        boxes.tolist(), sizes, masks, prediction.scores.tolist(), prediction.classes.tolist(), strict=True
    )
    for (left, top, across, down), area, mask, score, category in rows:
        yield Annotation(image, category, (left, top, across, down), area, mask, score=score)


def read_results(
    path: Path, categories: Mapping[Any, str], labels: Sequence[str]
) -> Mapping[str, CocoResults]:
    """Reads COCO results JSON.

    Boxes and areas are computed as by pycocotools' ``COCO.loadRes``, for which the first result decides: if
    it has a ``bbox``, each result must have one, and the area is the box's, even for a mask; otherwise the
    area is the mask's, and the box is the one around the mask.

    Args:
        path: The file: a list of objects with ``image_id``, ``category_id``, ``score``, and ``bbox``,
            ``segmentation`` as run lengths, or both.
        categories: The names of the dataset's classes by COCO's number.
        labels: The names of the classes in the order of their indices in predictions.

    Returns:
        A prediction of one row for each image in the file, by the id of the image's sample.

    Raises:
        DatasetError: The file cannot be read, or an entry is not such an object.
    """
    by_name = {name: place for place, name in enumerate(labels)}
    places = {each: by_name[name] for each, name in categories.items()}
    rows: dict[str, list[Annotation]] = {}
    entries = read_json(path)
    if not isinstance(entries, list):
        raise DatasetError(f"{path}: is not a list of results, as COCO results JSON is")
    by_box = bool(entries) and isinstance(entries[0], dict) and _has(entries[0], "bbox")
    for place, entry in enumerate(entries):
        try:
            image, found = _annotation(entry, places, by_box=by_box)
        except ValueError as error:
            raise DatasetError(f"{path}: result {place}: {error}") from error
        rows.setdefault(image, []).append(found)
    return {image: CocoResults(tuple(found)) for image, found in rows.items()}


def _has(entry: Mapping[str, Any], name: str) -> bool:
    """Returns whether a result has a value; like pycocotools, treats an empty list as none."""
    return entry.get(name) not in (None, [])


def _annotation(entry: Any, places: Mapping[Any, int], *, by_box: bool) -> tuple[str, Annotation]:
    if not isinstance(entry, dict):
        raise ValueError("is not an object with image_id, category_id and score")
    for name in ("image_id", "category_id", "score"):
        if name not in entry:
            raise ValueError(f"has no {name}")
    image = printable(str(key(entry["image_id"], "image_id")))
    category = key(entry["category_id"], "category_id")
    if category not in places:
        known = suggestion(str(category), map(str, places))
        raise ValueError(f"category_id {printable(str(category))} is not one of the dataset's; {known}")
    score = number(entry["score"], "score")
    mask = run_lengths(entry["segmentation"]) if _has(entry, "segmentation") else None
    box = _box(entry["bbox"]) if _has(entry, "bbox") else None
    if box is None and mask is None:
        raise ValueError("has neither bbox nor segmentation")
    if by_box:
        if box is None:
            raise ValueError("has no bbox, which the first result has")
        return image, Annotation(0, places[category], box, box[2] * box[3], mask, score=score)
    if mask is None:
        raise ValueError("has no segmentation, which the first result has instead of a bbox")
    [area] = areas([mask.counts], mask.height, mask.width)
    return image, Annotation(0, places[category], box, area, mask, score=score)


def _box(written: object) -> tuple[float, float, float, float]:
    box = numbers(written, "bbox")
    if len(box) != 4 or not all(abs(side) < _FAR for side in box) or min(box[2:]) < 0:
        raise ValueError("bbox is not left, top, width and height")
    left, top, width, height = box
    return left, top, width, height


def run_lengths(written: Any) -> RunLengths:
    """Returns a mask from COCO's JSON, whose run lengths are compressed or are numbers.

    Raises:
        ValueError: It is not a mask, or its run lengths do not fill its size.
    """
    size, counts = (written.get("size"), written.get("counts")) if isinstance(written, dict) else (None, None)
    if not _whole(size, _MOST_PIXELS_OF_A_SIDE) or len(size) != 2 or 0 in size:
        raise ValueError("segmentation is not run lengths with the size, height and width, and counts")
    height, width = size
    if isinstance(counts, str) and counts.isascii():
        content = counts.encode("ascii")
    elif _whole(counts, height * width):
        content = compressed(counts)
    else:
        raise ValueError("segmentation has counts that are not run lengths")
    areas([content], height, width)
    return RunLengths(height, width, content)


def _whole(given: Any, most: int) -> TypeGuard[list[int]]:
    """Returns whether a value is a list of whole numbers from 0 to ``most``."""
    return isinstance(given, list) and all(type(each) is int and 0 <= each <= most for each in given)


FILE = "annotations.json"
FOLDER = "annotations"
INSTANCES = "instances_*.json"
_PREFIX = "instances_"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Image:
    """An image in the file: its name, size and objects."""

    number: Any
    path: Path
    truth: Objects


class CocoDataset(StoredDataset):
    """The images of a file in COCO's format, in its order; a sample's id is COCO's number of the image.

    The path is the file, or a folder with ``annotations.json`` or with one ``annotations/instances_*.json``.
    Images are in ``images`` or, for ``instances_val2017.json``, ``val2017``, next to the file or its folder
    ``annotations``. ``path`` is the file; the other arguments are those of ``StoredDataset``.

    Attributes:
        categories: The name of each class by its number.

    Raises:
        DatasetError: The file cannot be read or is damaged, an annotation contradicts it, or the folder of
            the images is missing.
    """

    backend = "coco"

    def _open(self, path: Path) -> int:
        self._file = file = _annotation_file(path)
        content = _content(file)
        self.categories = _categories(file, content)
        images = _images(file, content)
        objects = _objects_by_image(file, content, images, self.categories)
        federated = _federated(file, content, self.categories)
        folder = _image_folder(file, [name for name, _, _ in images.values()])
        self._images = [
            _Image(
                number,
                folder / file_name,
                _truth(objects.get(number, []), height, width, number, federated.get(number)),
            )
            for number, (file_name, height, width) in images.items()
        ]
        return len(self._images)

    def sample(self, index: int) -> Sample:
        """Returns a sample; its image is read later."""
        image = self._images[index]
        return Sample(printable(str(image.number)), partial(read_image, image.path), truth=image.truth)

    def files(self) -> Iterator[Path]:
        """Yields the file of the annotations, and the files of the images."""
        yield self._file
        yield from (image.path for image in self._images)


def _annotation_file(path: Path) -> Path:
    """Returns the annotations file in a folder, or the path itself if it is not a folder."""
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
    content = read_json(file)
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
    """Returns the name, height and width of each image by COCO's number."""
    found: dict[Any, tuple[str, int, int]] = {}
    texts: set[str] = set()
    for place, entry in enumerate(content["images"]):
        number = entry.get("id") if isinstance(entry, dict) else None
        if not _is_key(number) or printable(str(number)) in texts:  # 1 and "1" are one id of a sample
            raise DatasetError(f"{file}: image {place} has no id of its own")
        texts.add(printable(str(number)))
        name, height, width = (entry.get(each) for each in ("file_name", "height", "width"))
        if name is None and isinstance(url := entry.get("coco_url"), str):  # LVIS: …/val2017/000000397133.jpg
            name = "/".join(url.rsplit("/", 2)[-2:])
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


_ABSENT, _INCOMPLETE = "neg_category_ids", "not_exhaustive_category_ids"
FREQUENCIES = ("r", "c", "f")
"""Rare, common and frequent classes, as LVIS names them."""


def _federated(
    file: Path, content: Mapping[str, Any], categories: Mapping[Any, str]
) -> Mapping[Any, Federated]:
    """Returns the classes that LVIS lists for each image; empty if no image lists any."""
    if not any(name in entry for entry in content["images"] for name in (_ABSENT, _INCOMPLETE)):
        return {}
    frequencies: dict[str, str] = {}
    for entry in content["categories"]:
        frequency = entry.get("frequency", "")
        if frequency not in ("", *FREQUENCIES):
            raise DatasetError(
                f"{file}: category {entry['id']} has frequency {shown(frequency)}; allowed: r, c or f"
            )
        frequencies[categories[entry["id"]]] = frequency
    return {
        entry["id"]: Federated(
            _named(file, entry, _ABSENT, categories),
            _named(file, entry, _INCOMPLETE, categories),
            frequencies,
        )
        for entry in content["images"]
    }


def _named(file: Path, entry: Mapping[str, Any], name: str, categories: Mapping[Any, str]) -> frozenset[str]:
    ids = entry.get(name, [])
    if not isinstance(ids, list) or not all(_is_key(each) and each in categories for each in ids):
        number = printable(str(entry["id"]))
        raise DatasetError(f"{file}: image {number}: {name} is not a list of category ids")
    return frozenset(categories[each] for each in ids)


def _image_folder(file: Path, names: Sequence[str]) -> Path:
    """Returns the folder of the images: the one that holds the first image, or else any of them."""
    split = file.stem.removeprefix(_PREFIX) if file.stem.startswith(_PREFIX) else ""
    roots = (file.parent, file.parent.parent) if file.parent.name == FOLDER else (file.parent,)
    folders = [root / part for root in roots for part in ("images", split, f"images/{split}", "")]
    folders = list(dict.fromkeys(folders))
    with explained(DatasetError, f"{file}: its images cannot be found"):
        found = next((each for each in folders if names and (each / names[0]).is_file()), None)
        if found is None and names:
            found = next((each for each in folders if any((each / name).is_file() for name in names)), None)
    if found is None and names:
        shown = ", ".join(map(str, folders))
        raise DatasetError(f"{file}: {printable(names[0])} is in none of {shown}; put the images into images")
    return found or file.parent


_Row = tuple[str, tuple[float, float, float, float], float, bool, bool, RunLengths | Polygons | None]


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
                raise ValueError("is not an object")
            if missing := [name for name in ("image_id", "category_id", "bbox") if name not in entry]:
                raise ValueError(f"has no {missing[0]}")
            image = key(entry["image_id"], "image_id")
            if image not in images:
                raise ValueError(f"image_id {printable(str(image))} is not one of the images")
            category = key(entry["category_id"], "category_id")
            if category not in categories:
                raise ValueError(f"category_id {printable(str(category))} is not one of the categories")
            found.setdefault(image, []).append(_row(entry, categories[category], *images[image][1:]))
        except ValueError as error:
            raise DatasetError(f"{file}: {named}: {error}") from error
    return found


def _row(entry: Mapping[str, Any], category: str, height: int, width: int) -> _Row:
    """Returns the object in an annotation; raises ValueError if the entry does not describe one."""
    box = numbers(entry["bbox"], "bbox")
    if len(box) != 4 or min(box[2:]) < 0:
        raise ValueError(f"bbox {one_line(entry['bbox'], 60)} is not left, top, width and height")
    left, top, across, down = box
    if left > width or top > height or left + across < 0 or top + down < 0:
        raise ValueError(f"bbox {one_line(entry['bbox'], 60)} is outside of the {width} × {height} pixels")
    area = number(entry.get("area", across * down), "area")
    if area < 0:
        raise ValueError(f"area is {area}")
    crowd, ignore, difficult = (_flag(entry, name) for name in ("iscrowd", "ignore", "difficult"))
    mask = _mask(entry.get("segmentation"), height, width)
    return category, (left, top, across, down), area, crowd, ignore or difficult, mask


def _flag(entry: Mapping[str, Any], name: str) -> bool:
    value = entry.get(name, 0)
    if not isinstance(value, int) or value not in (0, 1):
        raise ValueError(f"{name} is {shown(value)}; allowed: 0 or 1")
    return bool(value)


def _mask(written: Any, height: int, width: int) -> RunLengths | Polygons | None:
    if written in (None, []):
        return None
    if isinstance(written, dict):
        mask = run_lengths(written)
        if (mask.height, mask.width) != (height, width):
            raise ValueError(
                f"its mask has {mask.height} × {mask.width} pixels, but the image has {height} × {width}"
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


def _truth(
    rows: Sequence[_Row], height: int, width: int, image: int | str, federated: Federated | None
) -> Objects:
    masks = tuple(row[5] for row in rows if row[5] is not None)
    return Objects(
        height,
        width,
        np.array([row[1] for row in rows], np.float64).reshape(-1, 4),
        tuple(row[0] for row in rows),
        np.array([row[2] for row in rows], np.float64),
        np.array([row[3] for row in rows], np.bool_),
        masks if len(masks) == len(rows) else None,
        image,
        np.array([row[4] for row in rows], np.bool_),
        federated,
    )
