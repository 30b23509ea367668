"""The metric of image enhancement: how much the images are like the dataset's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tasks.predictions import Images, Predictions
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.datasets.truths import TargetImage
from inferometer.evaluators.tasks.bootstrap import mean_score
from inferometer.evaluators.tasks.image_similarity import luma, psnr_db, ssim
from inferometer.evaluators.tasks.metric import Score, TaskMetric, TaskResult
from inferometer.manifests.errors import DatasetError, PredictionError
from inferometer.manifests.schema import ModelManifest

_SIDES = 2


class ImageEnhancementMetric(TaskMetric):
    """Compares images with targets, both 0…1: the means over the images of their PSNR and SSIM.

    Predictions are compared as they are, not rounded to 8 bits. ``score_border`` pixels at each side are left
    out, and with ``score_channels: Y`` the luma alone is compared, as papers on super-resolution do. A grey
    target of an image in colour is that grey in each channel.

    The PSNR of an image that equals its target is infinite: it is left out of the mean, and counted. An image
    smaller than SSIM's window has none, and is left out of that mean.
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
        """Compares one image; see ``TaskMetric``."""
        truth = sample.read_truth()
        if truth is None:
            return
        if not isinstance(truth, TargetImage):
            raise DatasetError("has no target image, which image enhancement is scored against")
        if not isinstance(prediction, Images) or len(prediction) != 1:
            raise PredictionError("the prediction is no image")
        image, target = self._compared(prediction.pixels[0], truth.pixels)
        self._samples += 1
        self._ratios.append(psnr_db(image, target))
        if (similarity := ssim(image, target)) is not None:
            self._similarities.append(similarity)

    def _compared(
        self, pixels: NDArray[np.floating[Any]], truth: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the parts of the image and of its target that are compared."""
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
