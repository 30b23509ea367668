"""COCO's average precision by pycocotools, and its interval by bootstrap over the images.

This module is imported only when objects are scored, since pycocotools is an extra.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask
from pycocotools.cocoeval import COCOeval

from inferometer.evaluators.datasets.base import Federated, Polygons, RunLengths
from inferometer.evaluators.datasets.coco import FREQUENCIES, Annotation
from inferometer.evaluators.score_intervals import RESAMPLES, ScoreInterval, bootstrap_intervals
from inferometer.evaluators.tasks.metric import Score, score_within

VERSION = metadata.version("pycocotools")
_LAST = -1
_AREAS = ("all", "small", "medium", "large")
_BUDGET = 10**9
_LEAST_RESAMPLES = 100
_BEYOND = 2  # pixels outside of an image, which change nothing in it
_HALF, _THREE_QUARTERS = 0, 5  # the places of 0.5 and 0.75 among the thresholds of IoU
_MOST_OF_LVIS = 300
"""The number of detections in an image that count for LVIS."""
_VOC = ("VOC_AP", "VOC2007_AP")


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


class _Placed(dict[tuple[int, int], list[dict[str, Any]]]):
    """Objects by image and class; a look-up stores nothing, as most of LVIS's 24 million pairs have none."""

    def __missing__(self, place: tuple[int, int]) -> list[dict[str, Any]]:
        return []


class _Evaluation(COCOeval):  # type: ignore[misc]  # pycocotools has no types
    """COCO's evaluation of annotations in memory; if ``plain``, ignored objects are not treated as crowds."""

    def __init__(
        self,
        truths: Sequence[Annotation],
        predictions: Sequence[Annotation],
        images: int,
        kind: str,
        *,
        plain: bool = False,
    ) -> None:
        super().__init__(iouType=kind)
        self.params.imgIds = list(range(images))
        self.params.catIds = sorted({each.category for each in truths})
        self._annotations = truths, predictions
        self._plain = plain

    def _prepare(self) -> None:
        self._gts, self._dts = _Placed(), _Placed()
        for found, given in zip((self._gts, self._dts), self._annotations, strict=True):
            for number, annotation in enumerate(given, start=1):
                written = annotation.as_coco(number)
                if annotation.box is None:
                    written["bbox"] = coco_mask.toBbox(written["segmentation"]).tolist()
                if self._plain:
                    written["iscrowd"] = 0
                found.setdefault((annotation.image, annotation.category), []).append(written)


class _LvisEvaluation(_Evaluation):
    """LVIS's evaluation; see ``evaluate``."""

    def __init__(
        self,
        truths: Sequence[Annotation],
        predictions: Sequence[Annotation],
        kind: str,
        names: Mapping[int, str],
        federated: Sequence[Federated],
    ) -> None:
        objects = [each for each in truths if each.area > 0]
        known = {(each.image, each.category) for each in objects}
        of_image: defaultdict[int, list[Annotation]] = defaultdict(list)
        for each in sorted(predictions, key=lambda each: -each.score):
            of_image[each.image].append(each)
        judged = [
            each
            for found in of_image.values()
            for each in found[:_MOST_OF_LVIS]
            if (each.image, each.category) in known
            or names.get(each.category) in federated[each.image].absent
            if each.area > 0  # as in lvis.LVIS.get_ann_ids
        ]
        super().__init__(objects, judged, len(federated), kind, plain=True)
        self.params.maxDets = [_MOST_OF_LVIS]
        self._names, self._federated = names, federated

    def evaluateImg(self, *place: Any) -> dict[str, Any] | None:  # noqa: N802 - the name is pycocotools'
        found: dict[str, Any] | None = super().evaluateImg(*place)
        if found is not None and self._names[place[1]] in self._federated[place[0]].incomplete:
            found["dtIgnore"] = (found["dtIgnore"] > 0) | (found["dtMatches"] == 0)
        return found


def evaluate(
    truths: Sequence[Annotation],
    predictions: Sequence[Annotation],
    images: int,
    kind: Literal["bbox", "segm"],
    names: Mapping[int, str],
    federated: Sequence[Federated] | None = None,
) -> ObjectFigures:
    """Returns COCO's figures over the images 0…``images`` - 1 and the classes that they contain.

    Equal scores are ordered by the number of the image and, within one image, in the order of the detections.

    Source: ``pycocotools.cocoeval.COCOeval`` with its own parameters: the precision at 101 recalls, the mean
    over ten thresholds of IoU from 0.5 to 0.95 and over the classes with an object that is not a crowd; at
    most 100 detections of a class in an image. Predictions of classes that no image contains are ignored.
    For LVIS, ``lvis.LVISEval`` 0.5.3: of the 300 detections with the highest scores in an image, those of
    classes count that have an object in the image or are known to be absent. An unmatched detection of an
    incomplete class is not an error.

    Args:
        truths: The objects.
        predictions: The detections.
        images: The number of images that were evaluated.
        kind: Whether boxes or masks are compared.
        names: The names of the classes.
        federated: The classes that LVIS lists for each image; None for COCO's figures.
    """
    evaluation = _Evaluation(truths, predictions, images, kind)
    frequencies: Sequence[str] | None = None
    if federated is not None:
        evaluation = _LvisEvaluation(truths, predictions, kind, names, federated)
        of_name = federated[0].frequencies
        frequencies = [of_name.get(names[each], "") for each in evaluation.params.catIds]
    with redirect_stdout(io.StringIO()):  # it prints its progress
        evaluation.evaluate()
        evaluation.accumulate()
    values = _values(evaluation, frequencies)
    intervals = dict(zip(values, _intervals(evaluation, images), strict=False))
    precision = evaluation.eval["precision"][..., 0, _LAST]  # thresholds × recalls × classes
    half = precision[_HALF]
    return ObjectFigures(
        [_score(name, value, intervals.get(name)) for name, value in values.items()],
        {
            category: {"AP": _mean(precision[..., place]), "AP50": _mean(half[:, place])}
            for place, category in enumerate(evaluation.params.catIds)
        },
        [float(value) for value in half[:, half[0] > -1].mean(axis=1)] if (half > -1).any() else [],
    )


def _values(evaluation: COCOeval, frequencies: Sequence[str] | None) -> dict[str, float | None]:
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
        chosen = {each: np.array(frequencies, str) == each for each in FREQUENCIES}
        found |= {f"AP_{each}": _mean(precision[:, :, those, 0]) for each, those in chosen.items()}
    found |= {f"AR{most}": _mean(recall[:, :, 0, n]) for n, most in enumerate(evaluation.params.maxDets)}
    return found | {f"AR_{name}": _mean(recall[..., area, _LAST]) for area, name in enumerate(_AREAS) if area}


def _score(name: str, value: float | None, interval: ScoreInterval | None) -> Score:
    return Score(name, None) if value is None else score_within(name, value, interval, least=0.0, most=1.0)


def _mean(values: NDArray[np.float64]) -> float | None:
    """Returns the mean of the figures that are defined; COCO writes -1 for those that are not."""
    defined = values[values > -1]
    return float(defined.mean()) if defined.size else None


def _intervals(evaluation: COCOeval, images: int) -> list[ScoreInterval | None]:
    """Returns the intervals of AP, AP50 and AP75, from the matches in each image."""
    resampled = _ResampledPrecision(evaluation, images)

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
    resamples = min(RESAMPLES, _BUDGET // max(1, effort))
    if resamples < _LEAST_RESAMPLES:
        return [None] * count

    def drawn(indices: NDArray[np.int64]) -> Sequence[float]:
        return figures(np.bincount(indices, minlength=images))

    return bootstrap_intervals(drawn, images, count, resamples, around=figures(np.ones(images, np.int64)))


class _VocEvaluation(_Evaluation):
    """VOC's matches at an IoU of 0.5; see ``evaluate_voc``."""

    def evaluateImg(self, *place: Any) -> dict[str, Any] | None:  # noqa: N802 - the name is pycocotools'
        truths, scores = self._gts[place[:2]], [each["score"] for each in self._dts[place[:2]]]
        if not truths and not scores:
            return None
        matches, ignored = np.zeros((2, 1, len(scores)))
        taken: set[int] = set()
        for found, overlaps in enumerate(self.ious[place[:2]]):
            best = int(np.argmax(overlaps))
            if overlaps[best] >= self.params.iouThrs[0]:
                ignored[0, found] = truths[best]["ignore"]
                matches[0, found] = best not in taken
                taken.add(best)
        return {
            "gtIgnore": [each["ignore"] for each in truths],
            "dtIgnore": ignored,
            "dtMatches": matches,
            "dtScores": sorted(scores, reverse=True),
        }


def evaluate_voc(
    truths: Sequence[Annotation],
    predictions: Sequence[Annotation],
    images: int,
    kind: Literal["bbox", "segm"],
) -> ObjectFigures:
    """Returns PASCAL VOC's average precision, over the classes with an object that is not ignored.

    A detection belongs to the object of its class that it overlaps most in the image. It is a hit if the IoU
    is at least 0.5 and no detection with a higher score has hit the object, and otherwise a miss. If the
    object is ignored, like a difficult one, the detection is neither. The arguments and the order of equal
    scores are those of ``evaluate``; an ignored object is marked as a crowd.

    Source: Everingham et al., "The PASCAL Visual Object Classes (VOC) Challenge", IJCV 88, 2010, section 4.2,
    and ``VOCevaldet.m`` of the development kits: from 2010 on the area under the curve, and before the mean
    precision at the recalls 0, 0.1 … 1.
    """
    evaluation = _VocEvaluation(truths, predictions, images, kind, plain=True)
    evaluation.params.iouThrs, evaluation.params.maxDets = np.array([0.5]), [len(predictions)]
    evaluation.params.areaRng = evaluation.params.areaRng[:1]
    with redirect_stdout(io.StringIO()):
        evaluation.evaluate()
    resampled = _ResampledPrecision(evaluation, images)

    def figures(weights: NDArray[np.int64]) -> tuple[float, float]:
        [(areas, points)], present = resampled.curves(weights)
        if not present.any():
            return np.nan, np.nan
        return float(areas[present].mean()), float(points[present, ::10].mean())

    whole = np.ones(images, np.int64)
    [(areas, points)], present = resampled.curves(whole)
    intervals = _bootstrapped(figures, images, 2, resampled.detections)
    values = figures(whole) if present.any() else (None, None)
    both = np.stack([areas, points[:, ::10].mean(axis=1)], axis=1).tolist()
    return ObjectFigures(
        [_score(*each) for each in zip(_VOC, values, intervals, strict=True)],
        {
            category: dict(zip(_VOC, of_class if there else (None, None), strict=True))
            for category, of_class, there in zip(evaluation.params.catIds, both, present, strict=True)
        },
        points[present].mean(axis=0).tolist() if present.any() else [],
    )


class _ResampledPrecision:
    """Average precision over images that may be drawn repeatedly, from the matches that pycocotools found.

    An image that is drawn n times counts as n images with the same detections. Their equal scores stay
    together, which changes no precision at a recall: within a group of hits the highest precision comes last.

    Args:
        evaluation: The evaluation, of whose areas only the first counts.
        images: The number of images.

    Attributes:
        detections: The number of detections that count.
    """

    def __init__(self, evaluation: COCOeval, images: int) -> None:
        matches, classes = evaluation.evalImgs, len(evaluation.params.catIds)
        scores: list[NDArray[np.float64]] = []
        self._objects = np.zeros((classes, images))
        parts: list[tuple[int, int, NDArray[np.bool_], NDArray[np.bool_]]] = []
        for category in range(classes):
            begin = category * len(matches) // classes
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
        empty = np.zeros((len(evaluation.params.iouThrs), 0), np.bool_)
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
        curves, present = self.curves(weights)
        if not present.any():
            return np.full(len(self._hits), np.nan)
        return np.array([points[present].mean() for _, points in curves])

    def curves(
        self, weights: NDArray[np.int64]
    ) -> tuple[list[tuple[NDArray[np.float64], NDArray[np.float64]]], NDArray[np.bool_]]:
        """Returns the curves of precision for each threshold of IoU, and which classes have an object.

        A curve is, for each class, the area under it, and the precision at the recalls 0, 0.01 … 1.
        """
        objects = self._objects @ weights
        of_detection = weights[self._of_image].astype(np.float64)
        found = [
            self._curve(hits * of_detection, misses * of_detection, objects)
            for hits, misses in zip(self._hits, self._misses, strict=True)
        ]
        return found, objects > 0

    def _curve(
        self, hits: NDArray[np.float64], misses: NDArray[np.float64], objects: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the curve at one threshold.

        Each step processes all classes at once: their values are separated by adding twice the number of the
        class, which exceeds any precision or recall.
        """
        apart = 2.0 * self._of_class
        right, wrong = self._within_class(hits), self._within_class(misses)
        precision = right / (right + wrong + np.spacing(1))
        backwards = (2.0 * self._classes - apart + precision)[::-1]
        best = np.maximum.accumulate(backwards)[::-1] - (2.0 * self._classes - apart)
        objects = np.where(objects > 0, objects, 1.0)
        recall = right / objects[self._of_class] + apart
        wanted = (2.0 * np.arange(self._classes))[:, np.newaxis] + self._recalls
        places = np.searchsorted(recall, wanted - 1e-12)
        reached = places < self._ends[:, np.newaxis]
        at_recall = np.where(reached, np.append(best, 0.0)[np.minimum(places, len(best))], 0.0)
        return np.bincount(self._of_class, best * hits, self._classes) / objects, at_recall

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
