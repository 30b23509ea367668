"""The metric of instance segmentation: COCO's average precision of masks."""

from __future__ import annotations

from typing import ClassVar, Literal

from inferometer.agent.tasks.predictions import Detections, Instances, Predictions
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.datasets.truths import Objects
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

    def _objects(self, prediction: Predictions, truth: Objects) -> Detections | Instances:
        if not isinstance(prediction, Instances):
            raise PredictionError(f"the prediction is {prediction.kind}; {self.task} scores masks")
        height, width = prediction.sizes[0].tolist()
        if (height, width) != (truth.height, truth.width):
            raise PredictionError(
                f"the masks have {height} × {width} pixels, and the image of the truth has "
                f"{truth.height} × {truth.width}"
            )
        return prediction
