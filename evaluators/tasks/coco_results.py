"""Objects in COCO's notation, and the files of results that other tools write."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from inferometer.agent.tasks.predictions import Detections, Instances
from inferometer.agent.tasks.run_lengths import areas, compressed
from inferometer.evaluators.datasets.truths import RunLengths
from inferometer.manifests.errors import DatasetError, one_line, printable, suggestion

_FAR = 1e9


class Annotation(NamedTuple):
    """An object of the truth or a prediction, in COCO's notation.

    Attributes:
        image: The place of its image.
        category: The place of its class.
        box: Left, top, width and height in pixels.
        area: In pixels.
        mask: Its compressed run lengths; None for a box.
        crowd: Whether it is a crowd.
        score: Of a prediction.
    """

    image: int
    category: int
    box: tuple[float, float, float, float]
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
            "bbox": list(self.box),
            "area": self.area,
            "iscrowd": int(self.crowd),
            "ignore": int(self.crowd),
            "score": self.score,
        }
        if self.mask is not None:
            size = [self.mask.height, self.mask.width]
            found["segmentation"] = {"size": size, "counts": self.mask.counts}
        return found


def annotations_of(prediction: Detections | Instances, image: int) -> Iterator[Annotation]:
    """Yields the objects of a prediction of one row, the most certain first.

    Args:
        prediction: The row.
        image: The place of the image.

    Raises:
        ValueError: A mask is damaged.
    """
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
) -> Mapping[str, Detections | Instances]:
    """Reads COCO results JSON.

    Args:
        path: The file: a list of objects with ``image_id``, ``category_id``, ``score``, and ``bbox``,
            ``segmentation`` as run lengths, or both.
        categories: The names of the dataset's classes by their number.
        labels: The names in the order that the predictions count them.

    Returns:
        The prediction of one row for each image in the file, by its id as text.

    Raises:
        DatasetError: The file cannot be read, or an entry is not such an object.
    """
    places = {name: place for place, name in enumerate(labels)}
    rows: dict[str, list[Annotation]] = {}
    for number, entry in enumerate(_entries(path)):
        try:
            image, found = _annotation(entry, categories, places)
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            what = f"has no {error}" if isinstance(error, KeyError) else one_line(error)
            raise DatasetError(f"{path}: result {number}: {what}") from error
        rows.setdefault(image, []).append(found)
    return {image: _columns(path, image, found) for image, found in rows.items()}


def _entries(path: Path) -> list[Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: is no JSON: {one_line(error)}") from error
    if not isinstance(content, list):
        raise DatasetError(f"{path}: is no list of results, as COCO results JSON is")
    return content


def _annotation(
    entry: Any, categories: Mapping[Any, str], places: Mapping[str, int]
) -> tuple[str, Annotation]:
    if not isinstance(entry, dict):
        raise ValueError("is no object with image_id, category_id and score")
    category, score = entry["category_id"], float(entry["score"])
    if category not in categories:
        known = suggestion(str(category), [str(number) for number in categories])
        raise ValueError(f"category_id {printable(str(category))} is none of the dataset's; {known}")
    if not abs(score) < _FAR:
        raise ValueError(f"score is {score}")
    mask = box = None
    if (written := entry.get("segmentation")) is not None:
        mask = run_lengths(written)
    if (numbers := entry.get("bbox")) is not None:
        box = [float(number) for number in numbers]
        if len(box) != 4 or not all(abs(side) < _FAR for side in box) or min(box[2:]) < 0:
            raise ValueError("bbox is not left, top, width and height")
    if box is None and mask is None:
        raise ValueError("has neither bbox nor segmentation")
    left, top, across, down = box or (0.0, 0.0, 0.0, 0.0)
    place = places[categories[category]]
    return str(entry["image_id"]), Annotation(
        0, place, (left, top, across, down), across * down, mask, score=score
    )


def run_lengths(written: Any) -> RunLengths:
    """Returns a mask of COCO's JSON, whose run lengths are compressed or numbers.

    Raises:
        ValueError: It is none, or its run lengths do not fill its size.
    """
    try:
        height, width = (int(side) for side in written["size"])
        counts = written["counts"]
        content = counts.encode("ascii") if isinstance(counts, str) else compressed([int(n) for n in counts])
        areas([content], height, width)
    except (TypeError, KeyError, OverflowError, UnicodeEncodeError) as error:
        raise ValueError("segmentation is no run lengths with size and counts") from error
    return RunLengths(height, width, content)


def _columns(path: Path, image: str, found: Sequence[Annotation]) -> Detections | Instances:
    ordered = sorted(found, key=lambda each: -each.score)
    boxes = np.array([each.box for each in ordered], np.float64)
    boxes[:, 2:] += boxes[:, :2]
    detections = Detections(
        np.array([len(ordered)], np.int64),
        boxes.astype(np.float32),
        np.array([each.score for each in ordered], np.float32),
        np.array([each.category for each in ordered], np.int64),
    )
    masks = [each.mask for each in ordered if each.mask is not None]
    if not masks:
        return detections
    sizes = {(mask.height, mask.width) for mask in masks}
    if len(masks) < len(ordered) or len(sizes) > 1:
        raise DatasetError(f"{path}: image {printable(image)}: its masks differ in size, or some are missing")
    return Instances(
        detections.counts,
        detections.boxes,
        detections.scores,
        detections.classes,
        np.array([*sizes], np.int64),
        np.array([len(mask.counts) for mask in masks], np.int64),
        np.frombuffer(b"".join(mask.counts for mask in masks), np.uint8),
    )
