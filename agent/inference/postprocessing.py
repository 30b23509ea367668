"""Postprocessing: the choice of the model's task, and the labels that it requires."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.artifacts.locations import labels_file
from inferometer.agent.artifacts.model_files import get_file
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.preprocessing.origins import Origin
from inferometer.agent.tasks.postprocessing import PredictedInputs
from inferometer.agent.tasks.predictions import Outputs
from inferometer.agent.tasks.registry import POSTPROCESSORS
from inferometer.manifests.errors import ArtifactError, ArtifactUnavailableError, PredictionError
from inferometer.manifests.schema import ModelManifest, ModelOutput

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
    """Converts a model's outputs to predictions, according to the model's task. Thread-safe.

    ``feature_limit`` bounds what a task keeps, such as the best classes of each input; 0 keeps all.

    Attributes:
        wants_inputs: Whether the task uses information on the inputs other than their number.
        invalid_row: The reason why an input with an invalid row failed.

    Raises:
        ConfigurationError: The task has no postprocessing here.
        ManifestError: The manifest lacks a field that the task requires.
    """

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        self._task = POSTPROCESSORS.find(output.type)(output, feature_limit)
        self.wants_inputs = self._task.wants_inputs
        self.invalid_row = self._task.invalid_row

    def __call__(
        self, tensors: Tensors, size: int, origins: Sequence[Origin | None] = ()
    ) -> tuple[Outputs, NDArray[np.bool_]]:
        """Returns the predictions of the valid rows of a batch, and the mask of these rows.

        The mask has an entry for each input, and is false where an output cannot be a prediction, such as a
        score that is not a finite number.

        Args:
            tensors: The model's outputs.
            size: The number of inputs.
            origins: The origin of each input; empty for tasks that do not use it.

        Raises:
            PredictionError: The outputs do not match the manifest.
        """
        if not (size == 1 and self._task.takes_unbatched):
            self._check_rows(tensors, size)
        return self._task(tensors, PredictedInputs.of(size, origins) if origins else PredictedInputs(size))

    def _check_rows(self, tensors: Tensors, size: int) -> None:
        for name, tensor in tensors.items():
            if tensor.ndim == 0 or len(tensor) != size:
                hint = "; for a model of one input at a time, use batch_size 1"
                raise PredictionError(
                    f"output {name} has shape {list(tensor.shape)} for a batch of {size} inputs"
                    + (hint if self._task.takes_unbatched else "")
                )
