"""Small datasets of objects and labels, and the predictions of another tool on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.task_dataset_files import colour, saved

CATEGORIES = [{"id": 7, "name": "cat"}, {"id": 9, "name": "dog"}]
RIGHT = {"image_id": 1, "category_id": 7, "bbox": [2, 2, 10, 10], "score": 0.9}
RUNS = {"size": [20, 30], "counts": [42, 10, *([10, 10] * 9), 368]}
"""The mask of a box of 10 × 10 pixels at 2, 2."""


def coco(root: Path, images: int = 3) -> Path:
    """Images of 30 × 20 pixels, of which the first two have a cat at the same place; the rest have none."""
    content = {
        "images": [
            {"id": number, "file_name": f"{number}.png", "height": 20, "width": 30}
            for number in range(1, images + 1)
        ],
        "annotations": [
            {
                "id": number,
                "image_id": number,
                "category_id": 7,
                "bbox": [2, 2, 10, 10],
                "area": 100,
                "segmentation": RUNS,
                "iscrowd": 0,
            }
            for number in (1, 2)
        ],
        "categories": CATEGORIES,
    }
    for number in range(1, images + 1):
        saved(root / "images" / f"{number}.png", colour(30, 20))
    (root / "annotations.json").write_text(json.dumps(content))
    return root


def results(path: Path, *entries: Any) -> Path:
    """COCO results JSON."""
    path.write_text(json.dumps(list(entries)))
    return path


def class_folders(root: Path, classes: Sequence[str] = ("cat", "dog"), each: int = 2) -> Path:
    """Images in a folder for each class."""
    for name in classes:
        for number in range(each):
            saved(root / name / f"{number}.png", colour())
    return root
