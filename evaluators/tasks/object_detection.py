"""The metrics of object detection and instance segmentation: COCO's average precision of boxes and masks."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from inferometer.agent.tasks.predictions import Detections, Instances, Predictions
from inferometer.evaluators.datasets.base import Objects, Polygons, RunLengths, Sample
from inferometer.evaluators.datasets.coco import Annotation, CocoResults, annotations_of
from inferometer.evaluators.tasks.accuracy import ClassIndex, decimal
from inferometer.evaluators.tasks.metric import TaskMetric, TaskResult, truth_of
from inferometer.manifests.errors import DatasetError, FrameworkUnavailableError, PredictionError, printable
from inferometer.manifests.schema import ModelManifest


class DetectionMetric(TaskMetric):
    """COCO's AP, over the images that were evaluated; see ``docs/tasks.md``.

    A dataset's class is the model's label of the same name. A number is the index of a label, for a dataset
    without names, only if no label is that number.
    """

    task: ClassVar[str] = "object_detection"
    what: ClassVar[str] = "COCO AP"
    kind: ClassVar[Literal["bbox", "segm"]] = "bbox"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        self._index = ClassIndex(manifest.output.parameters.labels)
        self._names: dict[int, str] = {}
        self._truths: list[Annotation] = []
        self._masks: list[RunLengths | Polygons | None] = []
        self._sizes: list[tuple[int, int]] = []
        self._images: list[int | str | None] = []
        self._predictions: list[Annotation] = []

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
        for name in set(truth.classes):
            self._class_of(name)

    def add(self, sample: Sample, prediction: Predictions) -> None:
        """Adds the prediction for one sample; see ``TaskMetric``."""
        truth = self._truth(sample)
        if truth is None:
            return
        objects = self._objects(prediction, truth)
        image = len(self._sizes)
        found = [
            Annotation(
                image, self._class_of(name), (left, top, width, height), float(area), None, bool(crowd)
            )
            for name, (left, top, width, height), area, crowd in zip(
                truth.classes, truth.boxes.tolist(), truth.areas, truth.crowds, strict=True
            )
        ]
        try:
            predictions = list(annotations_of(objects, image))
        except ValueError as error:
            raise PredictionError(f"a mask of the prediction is damaged: {error}") from error
        self._sizes.append((truth.height, truth.width))
        self._images.append(truth.image)
        self._truths += found
        self._masks += truth.masks or (None,) * len(found)
        self._predictions += predictions

    def result(self) -> TaskResult | None:
        """Returns the scores; None if no image with a truth was predicted."""
        if not self._sizes:
            return None
        from inferometer.evaluators.tasks import coco_evaluation

        truths, found = self._truths, self._predictions
        if self.kind == "segm":
            truths = [
                each._replace(mask=coco_evaluation.run_lengths_of(mask, *self._sizes[each.image]))
                for each, mask in zip(truths, self._masks, strict=True)
                if mask is not None
            ]
            found = [
                each._replace(mask=coco_evaluation.mask_of(each, *self._sizes[each.image])) for each in found
            ]
        places = self._places()
        truths, found = (
            [each._replace(image=places[each.image]) for each in annotations]
            for annotations in (truths, found)
        )
        figures = coco_evaluation.evaluate(truths, found, len(self._sizes), self.kind)
        objects, predictions = _tally(self._truths), _tally(self._predictions)
        classes: list[dict[str, Any]] = [
            {
                "name": self._names[index],
                "objects": objects[index],
                "predictions": predictions[index],
                "AP": precision,
                "AP50": at_half,
            }
            for index, (precision, at_half) in figures.per_class.items()
        ]
        recalls = [place / 100 for place in range(len(figures.precision))]
        return TaskResult(
            self.task,
            f"{self.what} (pycocotools {coco_evaluation.VERSION})",
            len(self._sizes),
            figures.scores,
            {"classes": classes, "curve": {"iou": 0.5, "recall": recalls, "precision": figures.precision}},
        )

    def _truth(self, sample: Sample) -> Objects | None:
        missing = (
            f"sample {printable(sample.id)}: has no objects, which {self.task} is scored against; give a "
            "dataset such as COCO's"
        )
        return truth_of(sample, Objects, missing)

    def _places(self) -> list[int]:
        """Returns the index of each image in pycocotools' order, by id; numbers come before texts.

        The order decides between equal scores. Without ids, it is that in which the images were added.
        """
        order = sorted(
            range(len(self._images)),
            key=lambda place: (type(self._images[place]).__name__, self._images[place]),
        )
        places = [0] * len(order)
        for rank, place in enumerate(order):
            places[place] = rank
        return places

    def _objects(self, prediction: Predictions, truth: Objects) -> Detections | Instances | CocoResults:
        """Returns the objects of a prediction, if they can be compared with the truth."""
        del truth
        if isinstance(prediction, Instances):
            return prediction.detections
        if isinstance(prediction, Detections | CocoResults):
            return prediction
        raise PredictionError(f"the prediction is {prediction.kind}; {self.task} scores objects")

    def _class_of(self, name: str) -> int:
        try:
            index = self._index.find(name)
        except DatasetError:
            number = decimal(name)
            if number is None or number >= len(self._index):
                raise
            index = number
        self._names.setdefault(index, name)
        return index


def _tally(annotations: Iterable[Annotation]) -> Counter[int]:
    """Returns the number of objects in each class; crowds do not count."""
    return Counter(each.category for each in annotations if not each.crowd)


class InstanceMetric(DetectionMetric):
    """COCO's AP of masks, over the images that were evaluated; see ``docs/tasks.md``."""

    task: ClassVar[str] = "instance_segmentation"
    what: ClassVar[str] = "COCO mask AP"
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
