"""Datasets of random objects in COCO's format, and files of results on them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from inferometer.agent.tasks.predictions import encoded
from inferometer.evaluators.jobs.job import DatasetChoice
from inferometer.evaluators.jobs.request import ScoreOptions
from inferometer.evaluators.scoring.score import ScoreRequest, score
from inferometer.evaluators.tasks.metric import TaskResult
from inferometer.manifests.catalog import Catalog

T = TypeVar("T")
SIDE = 128
"""Of an image, so that there are small, medium and large objects."""
TASKS = {"bbox": "object_detection", "segm": "instance_segmentation"}


class Draws:
    """The draws of a seed, made of ``random()`` alone, which is the same in every version of Python."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random

    def randint(self, least: int, most: int) -> int:
        return least + int(self.random() * (most - least + 1))

    def choice(self, given: Sequence[T]) -> T:
        return given[self.randint(0, len(given) - 1)]

    def sample(self, given: Iterable[T], count: int) -> list[T]:
        return sorted(given, key=lambda _: self.random())[:count]


class RandomFiles:
    """A dataset and results on it: crowds, ties, empty images, ids out of order, polygons and run lengths.

    With ``federated``, it is one of LVIS: with more classes, and for each image those that are known to be
    absent and those that are incomplete.
    """

    def __init__(self, folder: Path, seed: int, kind: str, *, federated: bool = False) -> None:
        self.random, self.federated = Draws(seed), federated
        ids: list[Any] = self.random.sample(range(1, 200), self.random.randint(1, 5))
        ids = [str(each) for each in ids] if seed % 5 == 0 else ids
        self.categories = self.random.sample(range(1, 90), 5 if federated else 2)
        truths = [
            self._truth(number, image)
            for number, image in enumerate(
                (image for image in ids for _ in range(self.random.choice((0, 1, 2, 4)))), start=1
            )
        ]
        truths = truths or [self._truth(1, ids[0])]
        # the first result decides what pycocotools makes of all of them
        style = self.random.choice(["both", "masks", "some masks"] + ["boxes"] * (kind == "bbox"))
        found = [self._result(truth, style) for truth in truths for _ in range(self.random.choice((0, 1, 2)))]
        found += [self._result(self._truth(0, image), style) for image in ids if self.random.random() < 0.5]
        if seed % 20 == 0:
            found += [
                self._result(truths[0], style) | {"score": 0.95} for _ in range(330 if federated else 130)
            ]
        found = self.random.sample(found, len(found))
        found = found or [self._result(truths[0], style)]
        if style == "some masks":
            found[0].setdefault("segmentation", self._run_lengths(self._box()))
        Image.new("RGB", (1, 1)).save(folder / "one.png")
        images = [{"id": each, "file_name": "one.png", "height": SIDE, "width": SIDE} for each in ids]
        categories = [{"id": each, "name": f"class {each}"} for each in self.categories]
        if federated:
            for name, chance in (("neg_category_ids", 0.4), ("not_exhaustive_category_ids", 0.3)):
                for image in images:
                    image[name] = [each for each in self.categories if self.random.random() < chance]
            for category in categories:
                category["frequency"] = self.random.choice("rcf")
        self.truth, self.results = folder / f"{seed}.json", folder / f"{seed}_found.json"
        written = {"images": images, "annotations": truths, "categories": categories}
        self.truth.write_text(json.dumps(written))
        self.results.write_text(json.dumps(found))

    def _box(self) -> list[float]:
        left, top = self.random.randint(0, 90), self.random.randint(0, 90)
        width = self.random.randint(4, SIDE - left)
        return [left, top, width, self.random.randint(4, SIDE - top)]

    def _truth(self, number: int, image: Any) -> dict[str, Any]:
        box = self._box()
        crowd = self.random.random() < 0.15 and not self.federated
        left, top, width, height = box
        right, bottom = left + width, top + height
        mask: Any = [[left, top, right, top, right, bottom, left + width / 3, bottom]]
        if crowd or self.random.random() < 0.5:
            mask = self._run_lengths(box)
        return {
            "id": number,
            "image_id": image,
            "category_id": self.random.choice(self.categories),
            "bbox": box,
            "area": self.random.choice([width * height, width * height / 2, 500, 5000, 0]),
            "iscrowd": int(crowd),
            self.random.choice(["ignore"] if self.federated else ["ignore", "difficult"]): int(
                self.random.random() < 0.15
            ),
            "segmentation": mask,
        }

    def _run_lengths(self, box: list[float]) -> dict[str, Any]:
        mask = np.zeros((SIDE, SIDE), np.bool_)
        left, top, width, height = (max(0, round(side)) for side in box)
        mask[top : top + height, left : left + width] = True
        mask[top + height // 2 :, left : left + width // 3] = False
        return {"size": [SIDE, SIDE], "counts": encoded(mask).decode("ascii")}

    def _result(self, truth: dict[str, Any], style: str) -> dict[str, Any]:
        left, top, width, height = truth["bbox"]
        change = self.random.choice(["none", "half", "moved", "fraction", "none", "half", "moved", "flat"])
        if change == "half":  # an overlap of 0.5 exactly
            width /= 2
        elif change == "moved":  # also beyond the image
            left, top = left + self.random.randint(-9, 9), top + self.random.randint(-9, 9)
        elif change == "flat" and style != "masks":
            height = 0
        elif change == "fraction":
            left, width = left + self.random.random() / 3, width * 0.9 + 0.1
        box = [left, top, width, height]
        found = {
            "image_id": truth["image_id"],
            "category_id": self.random.choice([truth["category_id"]] * 4 + self.categories),
            # ties, and scores that only float64 tells apart
            "score": self.random.choice([0.25, 0.5, 0.9, 0.90000000001, self.random.random()]),
        }
        if style != "masks":
            found["bbox"] = box
        if style in ("both", "masks") or (style == "some masks" and self.random.random() < 0.5):
            found["segmentation"] = self._run_lengths(box)
        return found

    def score(self, kind: str, **parameters: Any) -> TaskResult:
        """The scores of the results, as ``agent score`` computes them."""
        dataset = DatasetChoice(path=self.truth)
        request = ScoreRequest(
            task=TASKS[kind], predictions=self.results, dataset=dataset, options=ScoreOptions(**parameters)
        )
        return score(request, Catalog(), None).result
