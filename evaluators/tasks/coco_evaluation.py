"""COCO's average precision by pycocotools, and its interval by bootstrap over the images.

This module is imported only when objects are scored, since pycocotools is an extra.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask
from pycocotools.cocoeval import COCOeval

from inferometer.evaluators.datasets.base import Polygons, RunLengths
from inferometer.evaluators.datasets.coco import Annotation
from inferometer.evaluators.intervals import RESAMPLES, ScoreInterval, bootstrap_intervals
from inferometer.evaluators.tasks.metric import Score, score_within

VERSION = metadata.version("pycocotools")
_LAST = -1
_AREAS = ("all", "small", "medium", "large")
_BUDGET = 10**9
_LEAST_RESAMPLES = 100
_BEYOND = 2  # pixels outside of an image, which change nothing in it
_HALF, _THREE_QUARTERS = 0, 5  # the places of 0.5 and 0.75 among the thresholds of IoU


@dataclass(frozen=True, slots=True)
class CocoFigures:
    """The figures of COCO's evaluation.

    Attributes:
        scores: The figures, AP first.
        per_class: AP and AP50 of each class by its index; None for a class without objects.
        precision: The mean precision of the classes at an IoU of 0.5, at the recalls 0, 0.01 … 1.
    """

    scores: Sequence[Score]
    per_class: Mapping[int, tuple[float | None, float | None]]
    precision: Sequence[float]


class _Evaluation(COCOeval):  # type: ignore[misc]  # pycocotools has no types
    """COCO's evaluation, applied to annotations that are in memory."""

    def __init__(self, truths: Sequence[Annotation], predictions: Sequence[Annotation], kind: str) -> None:
        super().__init__(iouType=kind)
        self._annotations = truths, predictions

    def _prepare(self) -> None:
        tables: list[defaultdict[tuple[int, int], list[dict[str, Any]]]] = []
        for given in self._annotations:
            found = defaultdict(list)
            for number, annotation in enumerate(given, start=1):
                written = annotation.as_coco(number)
                if annotation.box is None:
                    written["bbox"] = coco_mask.toBbox(written["segmentation"]).tolist()
                found[annotation.image, annotation.category].append(written)
            tables.append(found)
        self._gts, self._dts = tables


def evaluate(
    truths: Sequence[Annotation],
    predictions: Sequence[Annotation],
    images: int,
    kind: Literal["bbox", "segm"],
) -> CocoFigures:
    """Returns COCO's figures over the images 0…``images`` - 1 and the classes that they contain.

    Equal scores are ordered by the number of the image and, within one image, in the order of the detections.

    Source: ``pycocotools.cocoeval.COCOeval`` with its own parameters: the precision at 101 recalls, the mean
    over ten thresholds of IoU from 0.5 to 0.95 and over the classes with an object that is not a crowd; at
    most 100 detections of a class in an image. Predictions of classes that no image contains are ignored.

    Args:
        truths: The objects.
        predictions: The detections.
        images: The number of images that were evaluated.
        kind: Whether boxes or masks are compared.
    """
    evaluation = _Evaluation(truths, predictions, kind)
    evaluation.params.imgIds = list(range(images))
    evaluation.params.catIds = sorted({each.category for each in truths})
    if not evaluation.params.catIds:
        return CocoFigures([Score(name, None) for name in _NAMES], {}, [])
    with redirect_stdout(io.StringIO()):  # it prints its progress
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][..., _LAST]  # thresholds × recalls × classes × areas
    values = [
        _mean(precision[..., 0]),
        _mean(precision[_HALF, ..., 0]),
        _mean(precision[_THREE_QUARTERS, ..., 0]),
        *(_mean(precision[..., area]) for area in range(1, len(_AREAS))),
        _mean(evaluation.eval["recall"][:, :, 0, _LAST]),
    ]
    intervals = _intervals(evaluation, images)
    intervals += [None] * (len(_NAMES) - len(intervals))
    named = zip(_NAMES, values, intervals, strict=True)
    half = precision[_HALF, :, :, 0]
    return CocoFigures(
        [
            Score(name, None) if value is None else score_within(name, value, interval, least=0.0, most=1.0)
            for name, value, interval in named
        ],
        {
            category: (_mean(precision[:, :, place, 0]), _mean(half[:, place]))
            for place, category in enumerate(evaluation.params.catIds)
        },
        [float(value) for value in half[:, half[0] > -1].mean(axis=1)] if (half > -1).any() else [],
    )


_NAMES = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large", "AR100")


def _mean(values: NDArray[np.float64]) -> float | None:
    """Returns the mean of the figures that are defined; COCO writes -1 for those that are not."""
    defined = values[values > -1]
    return float(defined.mean()) if defined.size else None


def _intervals(evaluation: COCOeval, images: int) -> list[ScoreInterval | None]:
    """Returns the intervals of AP, AP50 and AP75, from the matches in each image.

    Resampling raises AP if a class has few objects, or if there are few images: the precision at a recall is
    the highest from there on, and a draw that contains no object of a class leaves that class out.
    """
    resampled = _ResampledPrecision(evaluation.evalImgs, images, len(evaluation.params.catIds))
    thresholds = len(evaluation.params.iouThrs)
    affordable = _BUDGET // max(1, resampled.detections * thresholds)
    if affordable < _LEAST_RESAMPLES:
        return [None] * 3

    def figures(indices: NDArray[np.int64]) -> tuple[float, float, float]:
        of_threshold = resampled.average_precision(np.bincount(indices, minlength=images))
        return float(of_threshold.mean()), float(of_threshold[_HALF]), float(of_threshold[_THREE_QUARTERS])

    return bootstrap_intervals(
        figures, images, 3, min(RESAMPLES, affordable), around=figures(np.arange(images))
    )


class _ResampledPrecision:
    """Average precision over images that may be drawn repeatedly, from the matches that pycocotools found.

    An image that is drawn n times counts as n images with the same detections. Their equal scores stay
    together, which changes no precision at a recall: within a group of hits the highest precision comes last.

    Args:
        matches: ``COCOeval.evalImgs``, for each class, area and image.
        images: The number of images.
        classes: The number of classes.

    Attributes:
        detections: The number of detections that count.
    """

    def __init__(self, matches: Sequence[Any], images: int, classes: int) -> None:
        scores: list[NDArray[np.float64]] = []
        self._objects = np.zeros((classes, images))
        parts: list[tuple[int, int, NDArray[np.bool_], NDArray[np.bool_]]] = []
        for category in range(classes):
            begin = category * len(_AREAS) * images
            for image, match in enumerate(matches[begin : begin + images]):
                if match is None:
                    continue
                self._objects[category, image] = np.count_nonzero(np.asarray(match["gtIgnore"]) == 0)
                ignored = np.asarray(match["dtIgnore"], np.bool_)
                hits = np.asarray(match["dtMatches"]) > 0
                scores.append(np.asarray(match["dtScores"], np.float64))
                parts.append((category, image, hits & ~ignored, ~hits & ~ignored))
        lengths = [len(each) for each in scores]
        category_of = np.repeat([part[0] for part in parts], lengths).astype(np.int64)
        image_of = np.repeat([part[1] for part in parts], lengths).astype(np.int64)
        order = np.lexsort((-np.concatenate(scores), category_of)) if scores else np.zeros(0, np.int64)
        self.detections = len(order)
        self._classes = classes
        self._of_class, self._of_image = category_of[order], image_of[order]
        empty = np.zeros((10, 0), np.bool_)
        self._hits = np.concatenate([part[2] for part in parts] or [empty], axis=1)[:, order]
        self._misses = np.concatenate([part[3] for part in parts] or [empty], axis=1)[:, order]
        self._begins = np.searchsorted(self._of_class, np.arange(classes))
        self._ends = np.searchsorted(self._of_class, np.arange(classes), side="right")
        self._recalls = np.linspace(0.0, 1.0, 101)

    def average_precision(self, weights: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the mean over the classes at each threshold of IoU; NaN if no class has an object.

        Args:
            weights: int64, images; how many times each image counts.
        """
        objects = self._objects @ weights
        present = objects > 0
        if not present.any():
            return np.full(len(self._hits), np.nan)
        of_detection = weights[self._of_image].astype(np.float64)
        found = [
            self._precision(hits * of_detection, misses * of_detection, objects)[present].mean()
            for hits, misses in zip(self._hits, self._misses, strict=True)
        ]
        return np.array(found)

    def _precision(
        self, hits: NDArray[np.float64], misses: NDArray[np.float64], objects: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Returns the average precision of each class at one threshold.

        Each step processes all classes at once: their values are separated by adding twice the number of the
        class, which exceeds any precision or recall.
        """
        apart = 2.0 * self._of_class
        right, wrong = self._within_class(hits), self._within_class(misses)
        precision = right / (right + wrong + np.spacing(1))
        backwards = (2.0 * self._classes - apart + precision)[::-1]
        best = np.maximum.accumulate(backwards)[::-1] - (2.0 * self._classes - apart)
        recall = right / np.where(objects > 0, objects, 1.0)[self._of_class] + apart
        wanted = (2.0 * np.arange(self._classes))[:, np.newaxis] + self._recalls
        places = np.searchsorted(recall, wanted - 1e-12)
        reached = places < self._ends[:, np.newaxis]
        at_recall = np.where(reached, np.append(best, 0.0)[np.minimum(places, len(best))], 0.0)
        of_class: NDArray[np.float64] = at_recall.mean(axis=1)
        return of_class

    def _within_class(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns, for each detection, the sum of values of its class up to it."""
        sums = np.concatenate([[0.0], np.cumsum(values)])
        within: NDArray[np.float64] = sums[1:] - sums[self._begins][self._of_class]
        return within


def mask_of(annotation: Annotation, height: int, width: int) -> RunLengths:
    """Returns the mask of an object; the mask of a box alone is its rectangle, as in ``COCO.loadRes``."""
    if annotation.mask is not None:
        return annotation.mask
    left, top, across, down = annotation.box or (0.0, 0.0, 0.0, 0.0)
    # pycocotools takes memory for each pixel along a polygon, also for those outside of the image
    xs = np.clip([left, left + across], -_BEYOND, width + _BEYOND).tolist()
    ys = np.clip([top, top + down], -_BEYOND, height + _BEYOND).tolist()
    ring = (xs[0], ys[0], xs[0], ys[1], xs[1], ys[1], xs[1], ys[0])
    return run_lengths_of(Polygons((ring,)), height, width)


def run_lengths_of(mask: RunLengths | Polygons, height: int, width: int) -> RunLengths:
    """Returns a mask as compressed run lengths; polygons are filled by COCO's rules."""
    if isinstance(mask, RunLengths):
        return mask
    parts = coco_mask.frPyObjects([list(ring) for ring in mask.rings], height, width)
    return RunLengths(height, width, bytes(coco_mask.merge(parts)["counts"]))
