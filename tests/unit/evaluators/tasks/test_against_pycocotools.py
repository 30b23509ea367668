"""COCO's AP beside pycocotools itself, which reads and evaluates the same files of random objects."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from random_objects import RandomFiles

from inferometer.evaluators.tasks import average_precision

SEEDS = {"bbox": range(100), "segm": range(100, 200)}
IN_ONE_TEST = 25
FIGURES = (
    *("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large"),
    *("AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large"),
)
"""The order of ``COCOeval.stats``."""


def of_pycocotools(files: RandomFiles, kind: str) -> dict[str, float | None]:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with redirect_stdout(io.StringIO()):
        truth = COCO(str(files.truth))
        evaluation = COCOeval(truth, truth.loadRes(str(files.results)), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    figures = dict(zip(FIGURES, map(float, evaluation.stats), strict=True))
    precision = evaluation.eval["precision"][..., 0, -1]  # thresholds × recalls × classes
    for place, category in enumerate(evaluation.params.catIds):
        figures[f"AP of class {category}"] = float(precision[..., place].mean())
        figures[f"AP50 of class {category}"] = float(precision[0, :, place].mean())
    return {name: None if value == -1 else value for name, value in figures.items()}


@pytest.mark.parametrize(
    ("kind", "first"), [(kind, first) for kind, seeds in SEEDS.items() for first in seeds[::IN_ONE_TEST]]
)
def test_the_figures_are_those_of_pycocotools(
    kind: str, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(average_precision, "_intervals", lambda *_: [])
    different = {}
    for seed in range(first, first + IN_ONE_TEST):
        files = RandomFiles(tmp_path, seed, kind)
        result = files.score(kind)
        ours, theirs = {each.name: each.value for each in result.scores}, of_pycocotools(files, kind)
        classes = {each["name"]: each for each in result.details["classes"]}
        for name in (f"class {each}" for each in files.categories):
            ours |= {f"{figure} of {name}": classes.get(name, {}).get(figure) for figure in ("AP", "AP50")}
        curve = result.details["curve"]["precision"]
        assert (np.mean(curve) if curve else None) == pytest.approx(theirs["AP50"])
        if ours != pytest.approx(theirs, abs=1e-12):
            different[seed] = (ours, theirs)
    assert not different
