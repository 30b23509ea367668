"""Models and inputs that callers of the library pass directly: files, objects in memory, arrays."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.artifacts.signature import InputSignature
from inferometer.agent.inference.given_models import (
    GivenModel,
    Wanted,
    is_model_file,
    model_of_file,
    model_of_object,
)
from inferometer.client.api.invocation import Invocation
from inferometer.evaluators.jobs.requests import DatasetChoice
from inferometer.manifests.errors import ConfigurationError, printable

_log = logging.getLogger(__name__)


def given_model(invocation: Invocation, model: object, dataset: DatasetChoice) -> GivenModel | None:
    """Returns a model that needs no manifest; None for the name of one in a manifest.

    A string is a file if it contains a path separator or has the suffix of a model file.

    Raises:
        ConfigurationError: No framework accepts such an object, or its input cannot be described.
        ArtifactError: The file does not exist, or is not a readable model.
    """
    registry, inputs = invocation.registry, dataset.array
    array = inputs if isinstance(inputs, np.ndarray) else None
    wanted = Wanted(
        shape=None if array is None else array.shape[1:],
        element_type=None if array is None else array.dtype.name,
        examples=() if inputs is None or isinstance(inputs, np.ndarray) else _examples(inputs),
        images=dataset.is_named,
        tensors=not dataset.holds_images,
    )
    if isinstance(model, str) and os.sep not in model and not is_model_file(model, registry):
        return None
    if not isinstance(model, str | os.PathLike):
        return model_of_object(model, registry, wanted)
    given = model_of_file(Path(model), registry, wanted)
    found, *rest = map(printable, given.notes)
    if given.manifest.inputs[0].type == "image":
        invocation.notify(f"{found}; agent manifest init writes a manifest to correct it")
    for note in rest:
        _log.info(note)
    return given


def _examples(arrays: Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]]) -> tuple[InputSignature, ...]:
    named = arrays.items() if isinstance(arrays, Mapping) else (("", array) for array in arrays)
    return tuple(InputSignature(name, each.dtype.name, (None, *each.shape[1:])) for name, each in named)


def samples_of(inputs: object) -> NDArray[Any] | dict[str, NDArray[Any]] | tuple[NDArray[Any], ...]:
    """Returns the array of samples; for a model with several inputs, one array each, by name or in order.

    Raises:
        ConfigurationError: An input is not a NumPy array, or has no samples.
    """
    if isinstance(inputs, Mapping) and inputs:
        return {str(name): _samples(array) for name, array in inputs.items()}
    if isinstance(inputs, tuple) and inputs:
        return tuple(map(_samples, inputs))
    return _samples(inputs)


def _samples(inputs: object) -> NDArray[Any]:
    """Checks and returns an array of samples."""
    if not isinstance(inputs, np.ndarray):
        raise ConfigurationError(
            f"inputs are {type(inputs).__name__}; accepted: a NumPy array of samples, such as tensor.numpy()"
        )
    if inputs.ndim < 2 or not inputs.size:
        raise ConfigurationError(
            f"inputs have the shape {inputs.shape}; accepted: (samples, …), with the shape of the model's "
            "input after the number of samples"
        )
    return inputs
