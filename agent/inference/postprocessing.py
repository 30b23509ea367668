"""Postprocessing: ranked classes, or raw tensors, from the outputs of a model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.artifacts.locations import labels_file
from inferometer.agent.artifacts.model_files import get_file
from inferometer.agent.inference.predictor import Tensors
from inferometer.agent.inference.results import Classifications, Outputs, RawOutputs
from inferometer.manifests.errors import ArtifactError, ArtifactUnavailableError, PredictionError
from inferometer.manifests.schema import ModelManifest, ModelOutput, Transform

if TYPE_CHECKING:
    from inferometer.agent.artifacts.cache import ArtifactCache


_log = logging.getLogger(__name__)


def with_labels(
    manifest: ModelManifest, *, needed: bool = True, cache: ArtifactCache | None = None
) -> ModelManifest:
    """Returns the manifest with the labels from the file at ``features_url``, if it names one.

    If the file is not available, the manifest's own labels stay. Without a ``cache``, it must be beside the
    manifest.

    Raises:
        ArtifactUnavailableError: Labels are ``needed``, the file is not available, and the manifest has none.
        ArtifactError: The file has another checksum, or is not text.
    """
    file = labels_file(manifest)
    if file is None:
        return manifest
    parameters = manifest.output.parameters
    try:
        path = get_file(file, cache).path
    except ArtifactUnavailableError as error:
        if needed and not parameters.labels:
            raise ArtifactUnavailableError(f"{error}; without it the model has no labels") from error
        level = logging.WARNING if needed else logging.INFO
        _log.log(level, "the labels of the manifest are used, if any: %s", error)
        return manifest
    output = manifest.output.model_copy(
        update={"parameters": parameters.model_copy(update={"labels": _read(path)})}
    )
    changed = manifest.model_copy(update={"output": output})
    changed._source = manifest.source
    return changed


def _read(path: Path) -> tuple[str, ...]:
    """Reads one label per line; blank lines at the end are ignored."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: the labels cannot be read: {' '.join(str(error).split())}") from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise ArtifactError(f"{path}: holds no labels")
    return tuple(line.strip() for line in lines)


class Postprocessor:
    """Turns output tensors into predictions. Thread-safe.

    The ``feature_limit`` best classes of each input are kept; 0 keeps all.
    """

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        self._output = output
        self._limit = feature_limit

    def __call__(self, tensors: Tensors, batch_size: int) -> tuple[Outputs, NDArray[np.bool_]]:
        """Returns the predictions of the valid rows of a batch, and the mask of these rows.

        The mask has ``batch_size`` entries, and is false where a score is not a finite number.

        Raises:
            PredictionError: The outputs do not match the manifest.
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
        # stable, so that the first of equal scores wins in every framework
        order = np.argsort(-scores, axis=1, kind="stable")[:, : self._limit or None]
        # the same as np.take_along_axis, without its overhead
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
