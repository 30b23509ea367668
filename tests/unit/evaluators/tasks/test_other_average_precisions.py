"""LVIS's AP beside what the package lvis computes, and VOC's beside the rules of the development kit."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from random_objects import SIDE, RandomFiles

from inferometer.agent.tasks.predictions import decoded
from inferometer.evaluators.datasets.base import Polygons
from inferometer.evaluators.datasets.coco import Annotation
from inferometer.evaluators.tasks import average_precision
from inferometer.evaluators.tasks.average_precision import mask_of, run_lengths_of

OF_LVIS = Path(__file__).with_name("lvis_0_5_3.json")
"""The figures of the random files with the seeds 0…199 by lvis 0.5.3, which requires an old NumPy.

``python tests/unit/evaluators/tasks/test_other_average_precisions.py`` writes it, where that is installed.
"""
FIGURES = (
    *("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large", "AP_r", "AP_c", "AP_f"),
    *("AR300", "AR_small", "AR_medium", "AR_large"),
)
"""The order of ``LVISEval.results``."""


def kind_of(seed: int) -> str:
    return "segm" if seed % 2 else "bbox"


def of_lvis(folder: Path, seed: int) -> list[float | None]:
    from lvis import LVIS, LVISEval, LVISResults

    files = RandomFiles(folder, seed, kind_of(seed), federated=True)
    truth = LVIS(str(files.truth))
    evaluation = LVISEval(truth, LVISResults(truth, str(files.results)), kind_of(seed))
    evaluation.run()
    return [None if value == -1 else round(float(value), 12) for value in evaluation.results.values()]


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_the_figures_are_those_of_lvis(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(average_precision, "_intervals", lambda *_: [])
    different = {}
    for seed, theirs in enumerate(json.loads(OF_LVIS.read_text())[first : first + 50], start=first):
        result = RandomFiles(tmp_path, seed, kind_of(seed), federated=True).score(kind_of(seed))
        ours = {each.name: each.value for each in result.scores}
        if ours != pytest.approx(dict(zip(FIGURES, theirs, strict=True)), abs=1e-11):
            different[seed] = (ours, theirs)
    assert not different


class Devkit:
    """VOC's average precision by the rules of ``VOCevaldet.m`` and ``VOCap.m``, one step after the other."""

    def __init__(self, files: RandomFiles, kind: str) -> None:
        self.kind = kind
        self.truth, self.found = json.loads(files.truth.read_text()), json.loads(files.results.read_text())

    def overlap(self, found: dict[str, Any], truth: dict[str, Any]) -> float:
        if self.kind == "segm":
            one, other = self.pixels(found), self.pixels(truth)
            return float((one & other).sum() / (one | other).sum())
        # pixels are counted from 1, and the last one belongs to a box
        boxes = (each.get("bbox") or self.around(self.pixels(each)) for each in (found, truth))
        bb, gt = ([x + 1, y + 1, x + w, y + h] for x, y, w, h in boxes)
        iw, ih = (min(bb[2 + axis], gt[2 + axis]) - max(bb[axis], gt[axis]) + 1 for axis in (0, 1))
        sizes = sum((box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (bb, gt))
        return iw * ih / (sizes - iw * ih) if iw > 0 and ih > 0 else 0.0

    def around(self, pixels: NDArray[np.bool_]) -> list[int]:
        (top, *_, bottom), (left, *_, right) = (np.flatnonzero(pixels.any(axis=axis)) for axis in (1, 0))
        return [left, top, right - left + 1, bottom - top + 1]

    def pixels(self, each: dict[str, Any]) -> NDArray[np.bool_]:
        mask = each.get("segmentation")
        if isinstance(mask, list):
            mask = {"counts": run_lengths_of(Polygons(tuple(map(tuple, mask))), SIDE, SIDE).counts.decode()}
        if mask is None:
            box = tuple(each["bbox"])
            mask = {"counts": mask_of(Annotation(0, 0, box, 0.0), SIDE, SIDE).counts.decode()}
        return decoded(mask["counts"].encode(), SIDE, SIDE)

    def of_class(self, category: int) -> tuple[float, float] | None:
        """The area under the curve, and the mean at 11 recalls; None without objects."""
        truths = [each for each in self.truth["annotations"] if each["category_id"] == category]
        easy = [not (each.get("ignore") or each.get("difficult") or each["iscrowd"]) for each in truths]
        if not any(easy):
            return None
        ids = sorted({each["id"] for each in self.truth["images"]})
        found = [each for each in self.found if each["category_id"] == category]
        found = [each for image in ids for each in found if each["image_id"] == image]
        detected, tp, fp = set(), [0], [0]
        for each in sorted(found, key=lambda one: -one["score"]):
            best, where = -1.0, -1
            for place, truth in enumerate(truths):
                if truth["image_id"] == each["image_id"] and self.overlap(each, truth) > best:
                    best, where = self.overlap(each, truth), place
            hit, counts = best >= 0.5, best < 0.5 or easy[where]
            right = hit and counts and where not in detected
            detected |= {where} if right else set()
            tp.append(tp[-1] + right)
            fp.append(fp[-1] + (counts and not right))
        recalls = [Fraction(each, sum(easy)) for each in tp[1:]]
        precisions = [right / max(right + wrong, 1) for right, wrong in zip(tp[1:], fp[1:], strict=True)]
        points = [Fraction(each, 10) for each in range(11)]
        reached = [[p for r, p in zip(recalls, precisions, strict=True) if r >= t] for t in points]
        mrec, mpre = [Fraction(0), *recalls, Fraction(1)], [0.0, *precisions, 0.0]
        for place in reversed(range(len(mpre) - 1)):
            mpre[place] = max(mpre[place], mpre[place + 1])
        area = sum(float(mrec[i] - mrec[i - 1]) * mpre[i] for i in range(1, len(mrec)))
        return area, sum(max(each, default=0.0) for each in reached) / 11


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_the_figures_are_those_of_vocs_development_kit(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(average_precision, "_bootstrapped", lambda *_: [None, None])
    different = {}
    for seed in range(first, first + 50):
        files = RandomFiles(tmp_path, seed, kind_of(seed))
        result, kit = files.score(kind_of(seed), average_precision="voc"), Devkit(files, kind_of(seed))
        each_class = {f"class {name}": kit.of_class(name) for name in files.categories}
        of_class = [each for each in each_class.values() if each is not None]
        theirs = np.mean(of_class, axis=0).tolist() if of_class else [None, None]
        ours = {each.name: each.value for each in result.scores}
        for found in result.details["classes"]:
            wanted = each_class[found["name"]] or (None, None)
            assert (found["VOC_AP"], found["VOC2007_AP"]) == pytest.approx(wanted, abs=1e-12)
        if ours != pytest.approx(dict(zip(("VOC_AP", "VOC2007_AP"), theirs, strict=True)), abs=1e-12):
            different[seed] = (ours, theirs)
    assert not different


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        found = [json.dumps(of_lvis(Path(folder), seed)) for seed in range(200)]
    OF_LVIS.write_text("[\n" + ",\n".join(found) + "\n]\n")
