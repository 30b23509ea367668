"""Objects in COCO's notation, and the files of results that other tools write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeGuard

import numpy as np

from inferometer.agent.tasks.predictions import Detections, Instances, Predictions
from inferometer.agent.tasks.run_lengths import areas, compressed
from inferometer.evaluators.datasets.files.json_text import key, number, numbers, parse_json
from inferometer.evaluators.datasets.truths import RunLengths
from inferometer.manifests.errors import DatasetError, printable, suggestion

_FAR = 1e9
_MOST_PIXELS_OF_A_SIDE = 100_000


class Annotation(NamedTuple):
    """An object of the truth or a prediction, in COCO's notation.

    Attributes:
        image: The place of its image.
        category: The place of its class.
        box: Left, top, width and height in pixels; None for that around the mask.
        area: In pixels.
        mask: Its compressed run lengths; None for a box alone.
        crowd: Whether it is a crowd.
        score: Of a prediction.
    """

    image: int
    category: int
    box: tuple[float, float, float, float] | None
    area: float
    mask: RunLengths | None = None
    crowd: bool = False
    score: float = 0.0

    def as_coco(self, number: int) -> dict[str, Any]:
        """Returns it as pycocotools has it; ``number`` counts from 1, because 0 means no match there."""
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
    """The objects in one image as another tool wrote them: in float64, and in COCO's notation.

    Attributes:
        objects: In the order of the file, which decides among equal scores; their image is 0.
    """

    kind: ClassVar[str] = "coco_results"
    objects: tuple[Annotation, ...]

    def __len__(self) -> int:
        return 1

    def row(self, place: int) -> CocoResults:
        """Returns the objects, which are those of one image."""
        del place
        return self


def annotations_of(prediction: Detections | Instances | CocoResults, image: int) -> Iterator[Annotation]:
    """Yields the objects of a prediction of one row, the most certain first where a model gave it.

    Args:
        prediction: The row.
        image: The place of the image.

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

    Boxes and areas are those of pycocotools' ``COCO.loadRes``, which goes by the first result: with a
    ``bbox``, each has one, and the area is the box's, also of a mask; without, the area is the mask's, and
    the box is the one around the mask.

    Args:
        path: The file: a list of objects with ``image_id``, ``category_id``, ``score``, and ``bbox``,
            ``segmentation`` as run lengths, or both.
        categories: The names of the dataset's classes by their number.
        labels: The names in the order that the predictions count them.

    Returns:
        The prediction of one row for each image in the file, by its id as a sample has it.

    Raises:
        DatasetError: The file cannot be read, or an entry is not such an object.
    """
    by_name = {name: place for place, name in enumerate(labels)}
    places = {each: by_name[name] for each, name in categories.items()}
    rows: dict[str, list[Annotation]] = {}
    entries = _entries(path)
    by_box = bool(entries) and isinstance(entries[0], dict) and _has(entries[0], "bbox")
    for place, entry in enumerate(entries):
        try:
            image, found = _annotation(entry, places, by_box=by_box)
        except ValueError as error:
            raise DatasetError(f"{path}: result {place}: {error}") from error
        rows.setdefault(image, []).append(found)
    return {image: CocoResults(tuple(found)) for image, found in rows.items()}


def _entries(path: Path) -> list[Any]:
    try:
        content = parse_json(path.read_bytes())
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from error
    if not isinstance(content, list):
        raise DatasetError(f"{path}: is no list of results, as COCO results JSON is")
    return content


def _has(entry: Mapping[str, Any], name: str) -> bool:
    """Returns whether a result has a value; pycocotools takes an empty list for none."""
    return entry.get(name) not in (None, [])


def _annotation(entry: Any, places: Mapping[Any, int], *, by_box: bool) -> tuple[str, Annotation]:
    if not isinstance(entry, dict):
        raise ValueError("is no object with image_id, category_id and score")
    for name in ("image_id", "category_id", "score"):
        if name not in entry:
            raise ValueError(f"has no {name}")
    image = printable(str(key(entry["image_id"], "image_id")))
    category = key(entry["category_id"], "category_id")
    if category not in places:
        known = suggestion(str(category), map(str, places))
        raise ValueError(f"category_id {printable(str(category))} is none of the dataset's; {known}")
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
    """Returns a mask of COCO's JSON, whose run lengths are compressed or numbers.

    Raises:
        ValueError: It is none, or its run lengths do not fill its size.
    """
    size, counts = (written.get("size"), written.get("counts")) if isinstance(written, dict) else (None, None)
    if not _whole(size, _MOST_PIXELS_OF_A_SIDE) or len(size) != 2 or 0 in size:
        raise ValueError("segmentation is no run lengths with the size, height and width, and counts")
    height, width = size
    if isinstance(counts, str) and counts.isascii():
        content = counts.encode("ascii")
    elif _whole(counts, height * width):
        content = compressed(counts)
    else:
        raise ValueError("segmentation has counts that are no run lengths")
    areas([content], height, width)
    return RunLengths(height, width, content)


def _whole(given: Any, most: int) -> TypeGuard[list[int]]:
    """Returns whether something is a list of whole numbers from 0 to ``most``."""
    return isinstance(given, list) and all(type(each) is int and 0 <= each <= most for each in given)
