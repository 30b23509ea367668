"""Postprocessing: a model's output tensors become ranked classes, or stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.predictor import Tensors
from agent.results import Classifications, Outputs, RawOutputs
from manifests.errors import PredictionError
from manifests.schema import ModelOutput, Transform


class Postprocessor:
    """Turns output tensors into predictions. Thread-safe.

    Args:
        output: The manifest's description of the output.
        feature_limit: The number of best classes kept for each input; 0 keeps all.
    """

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        self._output = output
        self._limit = feature_limit

    def __call__(self, tensors: Tensors, batch_size: int) -> tuple[Outputs, NDArray[np.bool_]]:
        """Returns the predictions of a batch, and which of its rows are predictions at all.

        Args:
            tensors: The model's outputs, each with ``batch_size`` rows.
            batch_size: The number of inputs.

        Returns:
            The predictions of the good rows, and a mask of ``batch_size`` entries that is false where a score
            is not a finite number.

        Raises:
            PredictionError: The outputs are not what the manifest describes.
        """
        for name, tensor in tensors.items():
            if tensor.ndim == 0 or len(tensor) != batch_size:
                raise PredictionError(
                    f"output {name} has shape {list(tensor.shape)} for a batch of {batch_size} inputs"
                )
        if self._output.type == "raw":
            return RawOutputs(tensors), np.ones(batch_size, np.bool_)
        scores = self._scores(tensors)
        good: NDArray[np.bool_] = np.isfinite(scores).all(axis=1)
        if not good.all():
            scores = scores[good]
        if self._output.parameters.probabilities_transform is Transform.SOFTMAX:
            scores = softmax(scores)
        # Stable, so that of equal scores the first class wins, in every framework.
        order = np.argsort(-scores, axis=1, kind="stable")[:, : self._limit or None]
        # what np.take_along_axis does, which takes more time over finding its way than over this
        best = scores[np.arange(len(scores))[:, np.newaxis], order]
        return Classifications(order.astype(np.int64, copy=False), best), good

    def _scores(self, tensors: Tensors) -> NDArray[np.float32]:
        """The scores as float32, inputs × classes."""
        layer = self._output.parameters.probabilities_layer
        names = list(tensors)
        if isinstance(layer, int):
            if not 0 <= layer < len(names):
                raise PredictionError(f"the model has no output number {layer}; it has {len(names)}")
            layer = names[layer]
        if layer not in tensors:
            raise PredictionError(f'the model has no output "{layer}"; it has: {", ".join(names)}')
        tensor: NDArray[Any] = tensors[layer]
        if tensor.ndim < 2 or not tensor.shape[1] or any(side != 1 for side in tensor.shape[2:]):
            raise PredictionError(
                f"output {layer} has shape {list(tensor.shape)}; a classification is inputs × classes"
            )
        if tensor.dtype.kind not in "biuf":
            raise PredictionError(f"output {layer} has element type {tensor.dtype}; scores are numbers")
        with np.errstate(over="ignore"):  # a score beyond float32 becomes infinite, which is reported
            scores = tensor.reshape(len(tensor), tensor.shape[1]).astype(np.float32, copy=False)
        labels = self._output.parameters.labels
        if labels and scores.shape[1] != len(labels):
            raise PredictionError(
                f"the model gives {scores.shape[1]} scores; its manifest has {len(labels)} labels"
            )
        return scores


def softmax(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns ``exp(x) / sum(exp(x))`` along each row, shifted by its maximum so that nothing overflows."""
    if not scores.size:
        return scores
    with np.errstate(over="ignore"):  # a difference beyond float32 is -inf, whose exponential is rightly 0
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float32] = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities
