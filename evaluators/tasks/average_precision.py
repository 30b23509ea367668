"""COCO's average precision by pycocotools, and its interval by bootstrap over the images.

This module is imported only when objects are scored, since pycocotools is an extra.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask
from pycocotools.cocoeval import COCOeval

from inferometer.evaluators.datasets.base import Polygons, RunLengths
from inferometer.evaluators.datasets.coco import FREQUENCIES, Annotation
from inferometer.evaluators.intervals import RESAMPLES, ScoreInterval, bootstrap_intervals
from inferometer.evaluators.tasks.metric import Score, score_within

VERSION = metadata.version("pycocotools")
_LAST = -1
_AREAS = ("all", "small", "medium", "large")
_BUDGET = 10**9
_LEAST_RESAMPLES = 100
_BEYOND = 2  # pixels outside of an image, which change nothing in it
_HALF, _THREE_QUARTERS = 0, 5  # the places of 0.5 and 0.75 among the thresholds of IoU
_MOST_OF_LVIS = 300
"""The number of detections in an image that LVIS judges."""
_VOC = ("VOC_AP", "VOC2007_AP")
_OF_CLASS = len(_VOC) + 101
_LEAST_OVERLAP = 0.5


@dataclass(frozen=True, slots=True)
class ObjectFigures:
    """The figures of an evaluation of objects.

    Attributes:
        scores: The figures, the most important one first.
        per_class: The figures of each class, such as AP and AP50, by its index; None if they are undefined.
        precision: The mean precision of the classes at an IoU of 0.5, at the recalls 0, 0.01 … 1.
    """

    scores: Sequence[Score]
    per_class: Mapping[int, Mapping[str, float | None]]
    precision: Sequence[float]


@dataclass(frozen=True, slots=True)
class Federation:
    """What the truths of a federated dataset such as LVIS leave open.

    Attributes:
        absent: The indices of an image and a class for the pairs that are known to have no object.
        incomplete: The same for the pairs of which not all objects are annotated.
        frequencies: The frequency of classes in the training images by their index: ``r``, ``c`` or ``f``.
    """

    absent: Set[tuple[int, int]]
    incomplete: Set[tuple[int, int]]
    frequencies: Mapping[int, str]


class _Evaluation(COCOeval):  # type: ignore[misc]  # pycocotools has no types
    """COCO's evaluation, or with a federation LVIS's, applied to annotations that are in memory."""

    def __init__(
        self,
        truths: Sequence[Annotation],
        predictions: Sequence[Annotation],
        kind: str,
        federation: Federation | None,
    ) -> None:
        super().__init__(iouType=kind)
        self._annotations = truths, predictions
        self._federation = federation
        if federation is not None:
            self.params.maxDets = [_MOST_OF_LVIS]

    def _prepare(self) -> None:
        tables: list[defaultdict[tuple[int, int], list[dict[str, Any]]]] = []
        for given in self._annotations:
            found = defaultdict(list)
            for number, annotation in enumerate(given, start=1):
                written = _as_coco(annotation, number)
                if self._federation is not None:
                    written["iscrowd"] = 0
                found[annotation.image, annotation.category].append(written)
            tables.append(found)
        self._gts, self._dts = tables

    def evaluateImg(self, *place: Any) -> dict[str, Any] | None:  # noqa: N802 - the name is pycocotools'
        found: dict[str, Any] | None = super().evaluateImg(*place)
        if found is not None and self._federation is not None and place[:2] in self._federation.incomplete:
            found["dtIgnore"] = (found["dtIgnore"] > 0) | (found["dtMatches"] == 0)
        return found


def _as_coco(annotation: Annotation, number: int = 1) -> dict[str, Any]:
    written = annotation.as_coco(number)
    if annotation.box is None:
        written["bbox"] = coco_mask.toBbox(written["segmentation"]).tolist()
    return written


def evaluate(
    truths: Sequence[Annotation],
    predictions: Sequence[Annotation],
    images: int,
    kind: Literal["bbox", "segm"],
    federation: Federation | None = None,
) -> ObjectFigures:
    """Returns COCO's figures over the images 0…``images`` - 1 and the classes that they contain.

    Equal scores are ordered by the number of the image and, within one image, in the order of the detections.

    Source: ``pycocotools.cocoeval.COCOeval`` with its own parameters: the precision at 101 recalls, the mean
    over ten thresholds of IoU from 0.5 to 0.95 and over the classes with an object that is not a crowd; at
    most 100 detections of a class in an image. Predictions of classes that no image contains are ignored.
    With a federation, ``lvis.LVISEval`` 0.5.3: the 300 most certain detections in an image count, only of
    classes that have an object there or are known to have none; one of an incomplete class that matches no
    object is not an error.

    Args:
        truths: The objects.
        predictions: The detections.
        images: The number of images that were evaluated.
        kind: Whether boxes or masks are compared.
        federation: What the truths of LVIS leave open; None for COCO's figures.
    """
    if federation is not None:
        truths, predictions = _judged_by_lvis(truths, predictions, federation.absent)
    evaluation = _Evaluation(truths, predictions, kind, federation)
    evaluation.params.imgIds = list(range(images))
    categories = evaluation.params.catIds = sorted({each.category for each in truths})
    with redirect_stdout(io.StringIO()):  # it prints its progress
        evaluation.evaluate()
        evaluation.accumulate()
    values = _values(evaluation, None if federation is None else federation.frequencies)
    intervals = dict(zip(values, _intervals(evaluation, images), strict=False))
    precision = evaluation.eval["precision"][..., 0, _LAST]  # thresholds × recalls × classes
    half = precision[_HALF]
    return ObjectFigures(
        [_score(name, value, intervals.get(name)) for name, value in values.items()],
        {
            category: {"AP": _mean(precision[..., place]), "AP50": _mean(half[:, place])}
            for place, category in enumerate(categories)
        },
        [float(value) for value in half[:, half[0] > -1].mean(axis=1)] if (half > -1).any() else [],
    )


def _values(evaluation: COCOeval, frequencies: Mapping[int, str] | None) -> dict[str, float | None]:
    """Returns the figures by name; AP, AP50 and AP75 come first."""
    precision = evaluation.eval["precision"][..., _LAST]  # thresholds × recalls × classes × areas
    recall = evaluation.eval["recall"]  # thresholds × classes × areas × numbers of detections
    found = {
        "AP": _mean(precision[..., 0]),
        "AP50": _mean(precision[_HALF, ..., 0]),
        "AP75": _mean(precision[_THREE_QUARTERS, ..., 0]),
        **{f"AP_{name}": _mean(precision[..., area]) for area, name in enumerate(_AREAS) if area},
    }
    if frequencies is not None:
        of_class = np.array([frequencies.get(each, "") for each in evaluation.params.catIds])
        found |= {f"AP_{each}": _mean(precision[:, :, of_class == each, 0]) for each in FREQUENCIES}
    most = enumerate(evaluation.params.maxDets)
    found |= {f"AR{number}": _mean(recall[:, :, 0, place]) for place, number in most}
    return found | {f"AR_{name}": _mean(recall[..., area, _LAST]) for area, name in enumerate(_AREAS) if area}


def _judged_by_lvis(
    truths: Sequence[Annotation], predictions: Sequence[Annotation], absent: Set[tuple[int, int]]
) -> tuple[list[Annotation], list[Annotation]]:
    """Returns the objects and the detections that LVIS judges.

    These are the 300 most certain detections in an image, if their class has an object there or is known to
    have none. What has no area does not count, as in ``lvis.LVIS.get_ann_ids``.
    """
    objects = [each for each in truths if each.area > 0]
    known = {(each.image, each.category) for each in objects} | absent
    of_image: defaultdict[int, list[Annotation]] = defaultdict(list)
    for each in sorted(predictions, key=lambda each: -each.score):
        of_image[each.image].append(each)
    best = (each for found in of_image.values() for each in found[:_MOST_OF_LVIS])
    return objects, [each for each in best if each.area > 0 and (each.image, each.category) in known]


def _score(name: str, value: float | None, interval: ScoreInterval | None) -> Score:
    return Score(name, None) if value is None else score_within(name, value, interval, least=0.0, most=1.0)


def _mean(values: NDArray[np.float64]) -> float | None:
    """Returns the mean of the figures that are defined; COCO writes -1 for those that are not."""
    defined = values[values > -1]
    return float(defined.mean()) if defined.size else None


def _intervals(evaluation: COCOeval, images: int) -> list[ScoreInterval | None]:
    """Returns the intervals of AP, AP50 and AP75, from the matches in each image."""
    resampled = _ResampledPrecision(evaluation.evalImgs, images, len(evaluation.params.catIds))

    def figures(weights: NDArray[np.int64]) -> tuple[float, float, float]:
        of_threshold = resampled.average_precision(weights)
        return float(of_threshold.mean()), float(of_threshold[_HALF]), float(of_threshold[_THREE_QUARTERS])

    return _bootstrapped(figures, images, 3, resampled.detections * len(evaluation.params.iouThrs))


def _bootstrapped(
    figures: Callable[[NDArray[np.int64]], Sequence[float]], images: int, count: int, effort: int
) -> list[ScoreInterval | None]:
    """Returns the intervals of figures over the images, of which ``figures`` gets how often each counts.

    Resampling raises AP if a class has few objects, or if there are few images: the precision at a recall is
    the highest from there on, and a draw that contains no object of a class leaves that class out.
    ``effort`` is the number of matches that each draw counts.
    """
    affordable = _BUDGET // max(1, effort)
    if affordable < _LEAST_RESAMPLES:
        return [None] * count

    def drawn(indices: NDArray[np.int64]) -> Sequence[float]:
        return figures(np.bincount(indices, minlength=images))

    everything = figures(np.ones(images, np.int64))
    return bootstrap_intervals(drawn, images, count, min(RESAMPLES, affordable), around=everything)


@dataclass(frozen=True, slots=True)
class _Judged:
    """The detections of one class, the most certain first, as VOC judges them.

    Attributes:
        images: int64, detections; the image of each.
        hits: bool, detections.
        misses: bool, detections; one that matches an ignored object is neither a hit nor a miss.
        objects: int64, images; the number of objects to be found.
    """

    images: NDArray[np.int64]
    hits: NDArray[np.bool_]
    misses: NDArray[np.bool_]
    objects: NDArray[np.int64]

    def figures(self, weights: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns both figures of VOC, and the precision at the recalls 0, 0.01 … 1; NaN without objects.

        Args:
            weights: int64, images; how many times each image counts.
        """
        objects = int(self.objects @ weights)
        if not objects:
            return np.full(_OF_CLASS, np.nan)
        found = np.cumsum(self.hits * weights[self.images])
        precision = found / np.maximum(found + np.cumsum(self.misses * weights[self.images]), 1)
        best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
        area = np.diff(found, prepend=0) @ best[:-1] / objects
        # compared in whole numbers: 3 of 10 objects are a recall of 0.3
        points = best[np.searchsorted(100 * found, np.arange(101) * objects)]
        return np.concatenate([[area, points[::10].mean()], points])


def evaluate_voc(
    truths: Sequence[Annotation],
    predictions: Sequence[Annotation],
    images: int,
    kind: Literal["bbox", "segm"],
) -> ObjectFigures:
    """Returns PASCAL VOC's average precision, over the classes with an object that is not ignored.

    A detection belongs to the object of its class that it overlaps most in the image. It is a hit if the IoU
    is at least 0.5 and no more certain detection has hit the object, and otherwise a miss; if the object is
    to be ignored, as difficult ones are, it is neither. The arguments and the order of equal scores are those
    of ``evaluate``; an object to be ignored is marked as a crowd.

    Source: Everingham et al., "The PASCAL Visual Object Classes (VOC) Challenge", IJCV 88, 2010, section 4.2,
    and ``VOCevaldet.m`` of the development kits: from 2010 on the area under the curve, and before the mean
    precision at the recalls 0, 0.1 … 1.
    """
    objects, detections = _by_class(truths), _by_class(predictions)
    categories = sorted(objects)
    judged = [_judged(objects[each], detections[each], images, kind) for each in categories]

    def figures(weights: NDArray[np.int64]) -> NDArray[np.float64]:
        of_class = np.array([each.figures(weights) for each in judged]).reshape(-1, _OF_CLASS)
        defined = of_class[~np.isnan(of_class[:, 0])]
        return defined.mean(axis=0) if len(defined) else np.full(_OF_CLASS, np.nan)

    whole = np.ones(images, np.int64)
    means = figures(whole)
    effort = sum(len(each.hits) for each in judged)
    intervals = _bootstrapped(lambda weights: figures(weights)[:2].tolist(), images, 2, effort)
    named = zip(_VOC, _known(means[:2]), intervals, strict=True)
    return ObjectFigures(
        [_score(*each) for each in named],
        {
            category: dict(zip(_VOC, _known(each.figures(whole)[:2]), strict=True))
            for category, each in zip(categories, judged, strict=True)
        },
        [] if np.isnan(means[0]) else means[2:].tolist(),
    )


def _by_class(given: Sequence[Annotation]) -> defaultdict[int, list[Annotation]]:
    found: defaultdict[int, list[Annotation]] = defaultdict(list)
    for each in given:
        found[each.category].append(each)
    return found


def _known(values: NDArray[np.float64]) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _judged(objects: Sequence[Annotation], found: Sequence[Annotation], images: int, kind: str) -> _Judged:
    """Returns the detections of a class as VOC judges them."""
    shape = "bbox" if kind == "bbox" else "segmentation"
    found = sorted(found, key=lambda each: (-each.score, each.image))
    there: defaultdict[int, list[Annotation]] = defaultdict(list)
    for each in objects:
        there[each.image].append(each)
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, each in enumerate(found):
        places[each.image].append(place)
    hits, misses = np.zeros((2, len(found)), np.bool_)
    for image, of_image in places.items():
        truths = there[image]
        shapes = (
            [_as_coco(each)[shape] for each in given] for given in ([found[p] for p in of_image], truths)
        )
        overlaps = coco_mask.iou(*shapes, [0] * len(truths)) if truths else np.zeros((len(of_image), 1))
        taken = set[int]()
        for place, row in zip(of_image, overlaps, strict=True):
            best = int(row.argmax())
            if row[best] < _LEAST_OVERLAP or best in taken:
                misses[place] = True
            elif not truths[best].crowd:
                hits[place] = True
                taken.add(best)
    counted = np.array([each.image for each in objects if not each.crowd], np.int64)
    return _Judged(
        np.array([each.image for each in found], np.int64),
        hits,
        misses,
        np.bincount(counted, minlength=images),
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
