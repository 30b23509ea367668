"""The metrics of tasks on images: detection, instance and semantic segmentation, and enhancement.

For objects and instances, the metric is the average precision of boxes and masks. For semantic segmentation,
the metrics are intersection over union and pixel accuracy over a whole dataset. For image enhancement, they
are the peak signal-to-noise ratio and structural similarity to the dataset's images.
"""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import (
    NO_CLASS,
    UNSEEN,
    ClassMaps,
    Detections,
    Images,
    Instances,
    Predictions,
)
from inferometer.evaluators.datasets.base import (
    IGNORED_CLASS,
    ClassMap,
    Federated,
    Objects,
    Polygons,
    RunLengths,
    Sample,
    TargetImage,
    UnreadClassMap,
)
from inferometer.evaluators.datasets.coco import Annotation, CocoResults, annotations_of
from inferometer.evaluators.tasks.image_similarity import luma, psnr_db, ssim
from inferometer.evaluators.tasks.metric import (
    MOST_COUNTS,
    ClassIndex,
    Score,
    TaskMetric,
    TaskResult,
    mean_score,
    ratio_score,
    truth_of,
)
from inferometer.manifests.errors import DatasetError, FrameworkUnavailableError, PredictionError, printable
from inferometer.manifests.schema import ModelManifest

_SIDES = 2


class ImageEnhancementMetric(TaskMetric):
    """Compares images with targets, both 0…1, by the means of PSNR and SSIM over the images.

    Predictions are not rounded to 8 bits. ``score_border`` pixels at each side are left out, and with
    ``score_channels: Y`` only the luma is compared, as in papers on super-resolution. A grey target of an
    image in colour is repeated in each channel.

    The PSNR of an image that equals its target is infinite: it is left out of the mean, but counted. An image
    smaller than SSIM's window has no SSIM, and is left out of that mean.
    """

    task = "image_enhancement"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        self._border = manifest.output.parameters.score_border
        self._luma = manifest.output.parameters.score_channels == "Y"
        self._ratios: list[float] = []
        self._similarities: list[float] = []
        self._samples = 0

    def add(self, sample: Sample, prediction: Predictions) -> None:
        missing = "has no target image, which image enhancement is scored against"
        if (truth := truth_of(sample, TargetImage, missing)) is None:
            return
        if not isinstance(prediction, Images) or len(prediction) != 1:
            raise PredictionError("the prediction is not an image")
        image, target = self._compared(prediction.pixels[0], truth.pixels)
        self._samples += 1
        self._ratios.append(psnr_db(image, target))
        if (similarity := ssim(image, target)) is not None:
            self._similarities.append(similarity)

    def _compared(
        self, pixels: NDArray[np.floating[Any]], truth: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the parts of the image and of its target that are to be compared."""
        if pixels.shape[:2] != truth.shape[:2]:
            raise PredictionError(
                f"the predicted image has {pixels.shape[1]} × {pixels.shape[0]} pixels, its target "
                f"{truth.shape[1]} × {truth.shape[0]}"
            )
        if pixels.shape[2] != truth.shape[2] and truth.shape[2] != 1:
            raise PredictionError("the predicted image is grey, its target is in colour")
        if min(truth.shape[:2]) <= _SIDES * self._border:
            raise PredictionError(
                f"nothing is left of {truth.shape[1]} × {truth.shape[0]} pixels without a border of "
                f"{self._border}"
            )
        inner = tuple(slice(self._border, side - self._border) for side in truth.shape[:2])
        image = pixels[inner].astype(np.float64)
        exact = truth[inner].astype(pixels.dtype) / pixels.dtype.type(255)  # so that an equal image is equal
        target = np.broadcast_to(exact, image.shape).astype(np.float64)
        return (luma(image), luma(target)) if self._luma else (image, target)

    def result(self) -> TaskResult | None:
        """Returns the scores; None if no image with a target was predicted."""
        if not self._samples:
            return None
        ratios = np.array([ratio for ratio in self._ratios if math.isfinite(ratio)])
        identical = self._samples - len(ratios)
        scores = [
            mean_score("PSNR", ratios, "dB"),
            mean_score("SSIM", np.array(self._similarities), least=-1.0, most=1.0),
            Score("identical", float(identical), is_count=True),
        ]
        details = {"ssim_images": len(self._similarities), "psnr_images": len(ratios)}
        return TaskResult(self.task, self._definition(), self._samples, scores, details)

    def _definition(self) -> str:
        channels = "Y of BT.601" if self._luma else "RGB"
        border = f", without a border of {self._border} pixels" if self._border else ""
        return f"PSNR and SSIM (Wang et al. 2004), range 1, {channels}{border}, mean over images, version 1"


DEFINITION = "mean IoU over the dataset's confusion matrix, version 1"
MOST_CLASSES = 4096
"""The maximum number of classes of a dataset: the matrix then takes up 128 MiB."""
MOST_SHOWN_CLASSES = 256
"""The maximum number of classes for which the details include the matrix."""
_NO_MAP = "has no class map, which semantic segmentation is scored against"


class SemanticSegmentationMetric(TaskMetric):
    """Counts the pixels of each class of the truth by the class that was predicted.

    A dataset's class is the model's label of the same name, as ``ClassIndex`` finds it; if either has no
    names, the class of the same number. The confusion matrix, int64, has a row for each of the dataset's
    classes and one more column, for pixels that the model assigns to none of them.

    The intersection over union of a class is the number of its recognised pixels divided by the number of
    pixels that belong to it, were predicted as it, or both, over all images (Everingham et al., "The PASCAL
    Visual Object Classes Challenge", 2015). Classes that occur neither in the truth nor in predictions are
    left out of the mean. Ignored pixels, and pixels that preprocessing cropped away, do not count.
    """

    task = "semantic_segmentation"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        self._labels = manifest.output.parameters.labels
        self._classes: tuple[str, ...] = ()
        self._places: NDArray[np.int64] | None = None
        self._size = len(self._labels)
        self._grows = not self._labels
        self._matrix = np.zeros((self._size, self._size + 1), np.int64)
        self._counts: list[NDArray[np.int64]] | None = []
        self._samples = self._pixels = self._ignored = self._unseen = 0

    def check(self, sample: Sample) -> None:
        """Checks that the model has the dataset's classes, and a truth in memory is a map; reads no map."""
        if isinstance(sample.truth, ClassMap | UnreadClassMap):
            self._learn(sample.truth.classes)
        elif sample.truth is not None and not callable(sample.truth):
            raise DatasetError(f"sample {printable(sample.id)}: {_NO_MAP}")

    def add(self, sample: Sample, prediction: Predictions) -> None:
        if (truth := truth_of(sample, ClassMap, _NO_MAP)) is None:
            return
        if not isinstance(prediction, ClassMaps) or len(prediction) != 1:
            raise PredictionError("the prediction is not a class map")
        found = prediction.map(0)
        if found.shape != truth.pixels.shape:
            raise PredictionError(
                f"the predicted map has {found.shape[1]} × {found.shape[0]} pixels, "
                f"the dataset's mask {truth.pixels.shape[1]} × {truth.pixels.shape[0]}"
            )
        self._learn(truth.classes)
        self._count(truth.pixels, found)

    def _learn(self, classes: tuple[str, ...]) -> None:
        """Adopts the dataset's names of classes, and finds the model's label for each."""
        if not classes or classes == self._classes:
            return
        if self._classes or len(classes) > MOST_CLASSES:
            raise DatasetError(
                f"the dataset has {len(classes)} classes, of other names than before"
                if self._classes
                else f"the dataset has {len(classes)} classes; at most {MOST_CLASSES} are counted"
            )
        if self._samples:
            raise DatasetError("only some class maps of the dataset have names of classes")
        if self._labels:
            index = ClassIndex(self._labels)
            places = np.full(len(self._labels), len(classes), np.int64)
            for place, name in enumerate(classes):
                label = index.find(name)
                if places[label] != len(classes):
                    raise DatasetError(
                        f'the dataset\'s classes "{classes[places[label]]}" and "{name}" match one label of '
                        f'the model: "{self._labels[label]}"'
                    )
                places[label] = place
            self._places = places
        self._classes, self._grows = classes, False
        self._resize(len(classes))

    def _resize(self, size: int) -> None:
        """Enlarges the matrix to ``size`` classes; the last column, for none of them, stays the last."""
        matrix = np.zeros((size, size + 1), np.int64)
        kept = min(self._size, size)
        matrix[:kept, :kept] = self._matrix[:kept, :kept]
        matrix[:kept, -1] = self._matrix[:kept, -1]
        self._matrix, self._size = matrix, size

    def _count(self, truth: NDArray[np.int32], found: NDArray[np.int32]) -> None:
        labelled, seen = truth != IGNORED_CLASS, found != UNSEEN
        counted = labelled & seen
        true, predicted = truth[counted].astype(np.int64), found[counted].astype(np.int64)
        self._make_room(true, predicted)
        if self._places is not None:
            columns = np.where(predicted == NO_CLASS, self._size, self._places[predicted])
        else:
            # where the dataset has fewer classes than the model, the others are none of them
            columns = np.where((predicted == NO_CLASS) | (predicted >= self._size), self._size, predicted)
        flat = np.bincount(true * (self._size + 1) + columns, minlength=self._matrix.size)
        matrix = flat.reshape(self._matrix.shape)
        self._matrix += matrix
        self._samples += 1
        self._pixels += truth.size
        self._ignored += int(truth.size - np.count_nonzero(labelled))
        self._unseen += int(np.count_nonzero(labelled & ~seen))
        if self._counts is not None:
            self._counts.append(_of_classes(matrix))
            if len(self._counts) * 3 * self._size > MOST_COUNTS:
                self._counts = None

    def _make_room(self, true: NDArray[np.int64], predicted: NDArray[np.int64]) -> None:
        """Checks the class numbers; if the classes have no names, makes room for the numbers that occur."""
        if not true.size:
            return
        if (wrong := _outside(true, 0, MOST_CLASSES if self._grows else self._size)) is not None:
            raise DatasetError(f"the mask has the class {wrong}; {self._known()}")
        if (wrong := _outside(predicted, NO_CLASS, len(self._labels) or MOST_CLASSES)) is not None:
            raise PredictionError(f"class {wrong} was predicted, which the model does not have")
        occurring = 1 + int(max(true.max(), predicted.max()))
        if self._grows and occurring > self._size:
            self._resize(occurring)

    def _known(self) -> str:
        if self._grows:
            return f"at most {MOST_CLASSES} classes are counted"
        whose = "dataset" if self._classes else "model"
        return f"the {whose} has {self._size} classes, 0 to {self._size - 1}"

    def result(self) -> TaskResult | None:
        """Returns the scores; None if no map with a truth was predicted."""
        if not self._samples:
            return None
        ious = _ious(_of_classes(self._matrix))
        finite = ious[np.isfinite(ious)]
        mean_iou = float(finite.mean()) if len(finite) else None
        shown = [
            *self._scores(mean_iou, _share(int(self._matrix.trace()), int(self._matrix.sum()))),
            Score("classes", float(len(finite)), is_count=True),
            Score("ignored", self._ignored / self._pixels if self._pixels else None),
            Score("unseen", _share(self._unseen, self._pixels - self._ignored)),
        ]
        return TaskResult(self.task, DEFINITION, self._samples, shown, self._details(ious))

    def _scores(self, mean_iou: float | None, accuracy: float | None) -> tuple[Score, Score]:
        """Returns the scores with intervals over the images, from the counts of each image's classes."""
        if self._counts is None or mean_iou is None or accuracy is None:
            return Score("mean_IoU", mean_iou), Score("pixel_accuracy", accuracy)
        counts = np.zeros((3, len(self._counts), self._size))
        for place, each in enumerate(self._counts):
            counts[:, place, : each.shape[1]] = each
        recognised, true, predicted = counts
        right, every = (each.sum(axis=1, keepdims=True) for each in (recognised, true))
        return (
            ratio_score("mean_IoU", mean_iou, recognised, true + predicted - recognised),
            ratio_score("pixel_accuracy", accuracy, right, every),
        )

    def _details(self, ious: NDArray[np.float64]) -> dict[str, Any]:
        names: Sequence[str] = self._classes or self._labels or tuple(map(str, range(self._size)))
        details: dict[str, Any] = {
            "classes": list(names),
            "class_iou": [float(iou) if np.isfinite(iou) else None for iou in ious],
            "counted_pixels": int(self._matrix.sum()),
        }
        if self._size <= MOST_SHOWN_CLASSES:
            details["confusion_matrix"] = self._matrix.tolist()
        return details


def _outside(numbers: NDArray[np.int64], least: int, limit: int) -> int | None:
    """Returns one number that is below ``least`` or not below ``limit``; None if there is none."""
    low, high = int(numbers.min()), int(numbers.max())
    return low if low < least else high if high >= limit else None


def _of_classes(matrix: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns counts for each class, 3 × classes: recognised, in the truth, and predicted."""
    return np.stack([matrix.diagonal(), matrix.sum(axis=1), matrix[:, :-1].sum(axis=0)])


def _ious(counts: NDArray[Any]) -> NDArray[np.float64]:
    """Returns the intersection over union of each class; NaN for a class that does not occur."""
    recognised, true, predicted = counts
    union = true + predicted - recognised
    ious: NDArray[np.float64] = np.divide(recognised, union, out=np.full(len(union), np.nan), where=union > 0)
    return ious


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


class DetectionMetric(TaskMetric):
    """The AP of COCO, LVIS or VOC, over the images that were evaluated; see ``docs/tasks.md``.

    It is the one that ``average_precision`` names, or else LVIS's for LVIS's datasets and COCO's for others.
    A dataset's class is the model's label of the same name. A number is the index of a label, for a dataset
    without names, only if no label is that number.
    """

    task: ClassVar[str] = "object_detection"
    what: ClassVar[str] = "AP"
    kind: ClassVar[Literal["bbox", "segm"]] = "bbox"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        self._index = ClassIndex(manifest.output.parameters.labels)
        self._classes: dict[str, int] = {}
        self._truths: list[Annotation] = []
        self._masks: list[RunLengths | Polygons | None] = []
        self._sizes: list[tuple[int, int]] = []
        self._images: list[int | str | None] = []
        self._predictions: list[Annotation] = []
        self._definition = manifest.output.parameters.average_precision
        self._federated: list[Federated | None] = []

    def check(self, sample: Sample) -> None:
        """Checks that the model knows the classes of a sample, and that pycocotools is installed.

        Raises:
            DatasetError: The model lacks a class, or the sample's truth is not objects.
            FrameworkUnavailableError: pycocotools is not installed.
        """
        truth = self._truth(sample)
        if truth is None:
            return
        if importlib.util.find_spec("pycocotools") is None:
            raise FrameworkUnavailableError(
                f"{self.task} is scored by pycocotools, which is not installed; install it with: "
                "pip install 'inferometer[coco]'"
            )
        if self._definition == "lvis" and truth.federated is None:
            raise DatasetError(
                f"sample {printable(sample.id)}: the dataset has no neg_category_ids, which LVIS's AP needs"
            )
        for name in set(truth.classes):
            self._class_of(name)

    def add(self, sample: Sample, prediction: Predictions) -> None:
        truth = self._truth(sample)
        if truth is None:
            return
        objects = self._objects(prediction, truth)
        image = len(self._sizes)
        rows = zip(truth.classes, truth.boxes.tolist(), truth.areas, self._uncounted(truth), strict=True)
        found = [
            Annotation(
                image, self._class_of(name), (left, top, width, height), float(area), None, bool(uncounted)
            )
            for name, (left, top, width, height), area, uncounted in rows
        ]
        try:
            predictions = list(annotations_of(objects, image))
        except ValueError as error:
            raise PredictionError(f"a mask of the prediction is damaged: {error}") from error
        self._sizes.append((truth.height, truth.width))
        self._images.append(truth.image)
        self._federated.append(truth.federated)
        self._truths += found
        self._masks += truth.masks or (None,) * len(found)
        self._predictions += predictions

    def result(self) -> TaskResult | None:
        """Returns the scores; None if no image with a truth was predicted."""
        if not self._sizes:
            return None
        from inferometer.evaluators.tasks import average_precision

        truths, found = self._truths, self._predictions
        if self.kind == "segm":
            truths = [
                each._replace(mask=average_precision.run_lengths_of(mask, *self._sizes[each.image]))
                for each, mask in zip(truths, self._masks, strict=True)
                if mask is not None
            ]
            found = [
                each._replace(mask=average_precision.mask_of(each, *self._sizes[each.image]))
                for each in found
            ]
        order = self._order()
        places = {image: place for place, image in enumerate(order)}
        truths, found = (
            [each._replace(image=places[each.image]) for each in annotations]
            for annotations in (truths, found)
        )
        names = {index: name for name, index in reversed(self._classes.items())}
        name = self._definition or ("coco" if self._federated[0] is None else "lvis")
        if name == "voc":
            figures = average_precision.evaluate_voc(truths, found, len(places), self.kind)
        else:
            given = [each for image in order if (each := self._federated[image]) is not None]
            federated = None if name == "coco" else given
            figures = average_precision.evaluate(truths, found, len(places), self.kind, names, federated)
        objects, predictions = _tally(self._truths), _tally(self._predictions)
        classes: list[dict[str, Any]] = [
            {"name": names[index], "objects": objects[index], "predictions": predictions[index], **of_class}
            for index, of_class in figures.per_class.items()
        ]
        recalls = [place / 100 for place in range(len(figures.precision))]
        return TaskResult(
            self.task,
            f"{name.upper()} {self.what} (pycocotools {average_precision.VERSION})",
            len(self._sizes),
            figures.scores,
            {"classes": classes, "curve": {"iou": 0.5, "recall": recalls, "precision": figures.precision}},
        )

    def _uncounted(self, truth: Objects) -> NDArray[np.bool_]:
        """Returns which objects a prediction neither hits nor misses."""
        ignored = np.zeros_like(truth.crowds) if truth.ignored is None else truth.ignored
        if self._definition == "voc":
            return truth.crowds | ignored
        return truth.crowds if self._definition == "coco" or truth.federated is None else ignored

    def _truth(self, sample: Sample) -> Objects | None:
        missing = (
            f"sample {printable(sample.id)}: has no objects, which {self.task} is scored against; give a "
            "dataset such as COCO's"
        )
        return truth_of(sample, Objects, missing)

    def _order(self) -> list[int]:
        """Returns the images in pycocotools' order, by id; numbers come before texts.

        The order decides between equal scores. Without ids, it is that in which the images were added.
        """
        ids = self._images
        return sorted(range(len(ids)), key=lambda image: (type(ids[image]).__name__, ids[image]))

    def _objects(self, prediction: Predictions, truth: Objects) -> Detections | Instances | CocoResults:
        """Returns the objects of a prediction, if they can be compared with the truth."""
        del truth
        if isinstance(prediction, Instances):
            return prediction.detections
        if isinstance(prediction, Detections | CocoResults):
            return prediction
        raise PredictionError(f"the prediction is {prediction.kind}; {self.task} scores objects")

    def _class_of(self, name: str) -> int:
        if name not in self._classes:
            self._classes[name] = self._index.find_or_index(name)
        return self._classes[name]


def _tally(annotations: Iterable[Annotation]) -> Counter[int]:
    """Returns the number of objects in each class; crowds do not count."""
    return Counter(each.category for each in annotations if not each.crowd)


class InstanceMetric(DetectionMetric):
    """The AP of masks, over the images that were evaluated; see ``docs/tasks.md``."""

    task: ClassVar[str] = "instance_segmentation"
    what: ClassVar[str] = "mask AP"
    kind: ClassVar[Literal["bbox", "segm"]] = "segm"

    def _truth(self, sample: Sample) -> Objects | None:
        truth = super()._truth(sample)
        if truth is not None and truth.classes and truth.masks is None:
            raise DatasetError(
                f"sample {printable(sample.id)}: not all of its objects have a mask, which "
                "instance_segmentation is scored against"
            )
        return truth

    def _objects(self, prediction: Predictions, truth: Objects) -> Instances | CocoResults:
        if isinstance(prediction, CocoResults):
            masks = (each.mask for each in prediction.objects)
            sizes = {(mask.height, mask.width) for mask in masks if mask is not None}
        elif isinstance(prediction, Instances):
            sizes = {(prediction.sizes[0, 0].item(), prediction.sizes[0, 1].item())}
        else:
            raise PredictionError(f"the prediction is {prediction.kind}; {self.task} scores masks")
        for height, width in sizes - {(truth.height, truth.width)}:
            raise PredictionError(
                f"the masks have {height} × {width} pixels, but the image of the truth has "
                f"{truth.height} × {truth.width}"
            )
        return prediction
