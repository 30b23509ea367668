"""The metric of instance segmentation: COCO's average precision of masks."""

from __future__ import annotations

from typing import ClassVar, Literal

from inferometer.agent.tasks.predictions import Instances, Predictions
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.datasets.truths import Objects
from inferometer.evaluators.tasks.coco_results import CocoResults
from inferometer.evaluators.tasks.object_detection import DetectionMetric
from inferometer.manifests.errors import DatasetError, PredictionError, printable


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
                f"the masks have {height} × {width} pixels, and the image of the truth has "
                f"{truth.height} × {truth.width}"
            )
        return prediction
