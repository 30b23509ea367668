"""The metrics of object detection and instance segmentation: the average precision of boxes and masks."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Detections, Instances, Predictions
from inferometer.evaluators.datasets.base import Federated, Objects, Polygons, RunLengths, Sample
from inferometer.evaluators.datasets.coco import Annotation, CocoResults, annotations_of
from inferometer.evaluators.tasks.accuracy import ClassIndex
from inferometer.evaluators.tasks.metric import TaskMetric, TaskResult, truth_of
from inferometer.manifests.errors import DatasetError, FrameworkUnavailableError, PredictionError, printable
from inferometer.manifests.schema import ModelManifest


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
        """Adds the prediction for one sample; see ``TaskMetric``."""
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
