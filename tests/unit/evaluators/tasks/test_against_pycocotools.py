"""COCO's AP beside pycocotools itself, which reads and evaluates the same files of random objects."""

from __future__ import annotations

import io
import json
import random
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inferometer.agent.tasks.predictions import encoded
from inferometer.evaluators.jobs.job import DatasetChoice
from inferometer.evaluators.scoring.score import ScoreRequest, score
from inferometer.evaluators.tasks import coco_evaluation
from inferometer.manifests.catalog import Catalog

SEEDS = {"bbox": range(100), "segm": range(100, 200)}
IN_ONE_TEST = 25
SIDE = 128
"""Of an image, so that there are small, medium and large objects."""
FIGURES = {"AP": 0, "AP50": 1, "AP75": 2, "AP_small": 3, "AP_medium": 4, "AP_large": 5, "AR100": 8}
"""The places of the figures in ``COCOeval.stats``."""
TASKS = {"bbox": "object_detection", "segm": "instance_segmentation"}


class RandomFiles:
    """A dataset and results on it: crowds, ties, empty images, ids out of order, polygons and run lengths."""

    def __init__(self, folder: Path, seed: int, kind: str) -> None:
        self.random = random.Random(seed)
        ids: list[Any] = self.random.sample(range(1, 200), self.random.randint(1, 5))
        ids = [str(each) for each in ids] if seed % 5 == 0 else ids
        self.categories = self.random.sample(range(1, 90), 2)
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
            found += [self._result(truths[0], style) for _ in range(130)]
        self.random.shuffle(found)
        found = found or [self._result(truths[0], style)]
        if style == "some masks":
            found[0].setdefault("segmentation", self._run_lengths(self._box()))
        images = [{"id": each, "file_name": "one.png", "height": SIDE, "width": SIDE} for each in ids]
        categories = [{"id": each, "name": f"class {each}"} for each in self.categories]
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
        crowd = self.random.random() < 0.15
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
            "area": self.random.choice([width * height, width * height / 2, 500, 5000]),
            "iscrowd": int(crowd),
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
        change = self.random.choice(["none", "half", "moved", "fraction"])
        if change == "half":  # an overlap of 0.5 exactly
            width /= 2
        elif change == "moved":  # also beyond the image
            left, top = left + self.random.randint(-9, 9), top + self.random.randint(-9, 9)
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


def of_pycocotools(files: RandomFiles, kind: str) -> dict[str, float | None]:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with redirect_stdout(io.StringIO()):
        truth = COCO(str(files.truth))
        evaluation = COCOeval(truth, truth.loadRes(str(files.results)), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    values = {name: float(evaluation.stats[place]) for name, place in FIGURES.items()}
    return {name: None if value == -1 else value for name, value in values.items()}


@pytest.mark.parametrize(
    ("kind", "first"), [(kind, first) for kind, seeds in SEEDS.items() for first in seeds[::IN_ONE_TEST]]
)
def test_the_figures_are_those_of_pycocotools(
    kind: str, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coco_evaluation, "_intervals", lambda *_: [])
    Image.new("RGB", (1, 1)).save(tmp_path / "one.png")
    different = {}
    for seed in range(first, first + IN_ONE_TEST):
        files = RandomFiles(tmp_path, seed, kind)
        request = ScoreRequest(
            task=TASKS[kind], predictions=files.results, dataset=DatasetChoice(path=files.truth)
        )
        result = score(request, Catalog(), None).result
        ours, theirs = {name: result.score(name) for name in FIGURES}, of_pycocotools(files, kind)
        if ours != pytest.approx(theirs, abs=1e-12):
            different[seed] = (ours, theirs)
    assert not different
