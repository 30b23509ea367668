"""Builds job requests from the arguments of the library's functions, and finds the model that they name.

A model is a name, a DLBS id, which is an architecture, a file, or an object in memory; inputs are arrays.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packaging.version import Version

from inferometer.agent.artifacts.files import InputSignature
from inferometer.agent.hardware.environment import CPU, Device, DeviceKind, Precision, Weights
from inferometer.agent.inference.given_models import (
    GivenModel,
    Wanted,
    is_model_file,
    model_of_file,
    model_of_object,
)
from inferometer.agent.inference.session import SessionOptions
from inferometer.client.api.discovery import choose_agents
from inferometer.client.api.invocation import FRAMEWORK, Invocation
from inferometer.evaluators.jobs import options as ranges
from inferometer.evaluators.jobs.job import (
    DatasetChoice,
    EvaluationRequest,
    SystemRequest,
    default_batch_size,
    inputs_for,
)
from inferometer.evaluators.kinds.batches.measurement import BatchOptions
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, UnknownModelError, printable, suggestion
from inferometer.manifests.schema import ModelManifest


def named_model(catalog: Catalog, name: str, version: str | None = None) -> tuple[str, str | None]:
    """Returns the name and the version of a manifest.

    Matches are tried in this order: a manifest with exactly this name, an architecture with this name (at its
    highest version), a manifest whose name differs only in case. So ``alexnet`` is the architecture of
    BVLC-AlexNet, and ``AlexNet`` is another model.

    Raises:
        UnknownModelError: Neither a manifest nor an architecture has this name.
    """
    wanted = name.strip()
    if any(model.name == wanted for model in catalog.models):
        return wanted, version
    built = [model for model in catalog.models if _architecture(model) == wanted.casefold()]
    if built:
        highest = max(built, key=lambda model: Version(model.version))
        return highest.name, version or highest.version
    if any(model.name.casefold() == wanted.casefold() for model in catalog.models):
        return wanted, version
    known = dict.fromkeys((*architectures(catalog), *(model.name for model in catalog.models)))
    raise UnknownModelError(f'unknown model "{name}"; {suggestion(name, known)}')


def architectures(catalog: Catalog) -> Iterator[str]:
    """Yields the architectures that models name, except those from packages."""
    names = {_architecture(model) for model in catalog.models}
    yield from sorted(name for name in names if name and ":" not in name)


def _architecture(model: ModelManifest) -> str:
    return (model.model.architecture or "").casefold()


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


def system_request(
    invocation: Invocation,
    model: str | os.PathLike[str] | object,
    *,
    dataset: DatasetChoice = DatasetChoice(),  # noqa: B008 - frozen
    version: str | None,
    framework: str | None,
    weights: str,
    seed: int,
    gpu: bool,
    threads: int | None,
    agent: str | None,
    precision: str | None = None,
    cudnn_benchmark: bool | None = None,
) -> SystemRequest:
    """Returns the request for a model and where it runs; see ``given_model`` for one without a manifest.

    Raises:
        InferometerError: A value is invalid, or no agent fits.
    """
    session = session_options(
        weights=weights,
        seed=seed,
        gpu=gpu,
        threads=threads,
        precision=precision,
        cudnn_benchmark=cudnn_benchmark,
    )
    given = given_model(invocation, model, dataset)
    if given is not None:
        if version is not None or framework is not None:
            raise ConfigurationError("version and framework choose a manifest, and this model needs none")
        if agent is not None:
            raise ConfigurationError(
                f"model {given.manifest.name} has no manifest and runs in this process; an agent runs the "
                "models of its manifests, which agent manifest init writes"
            )
    request = SystemRequest(
        model_name=given.manifest.name if given else str(model),
        given=given,
        model_version=version,
        framework_name=framework or (None if given else os.environ.get(FRAMEWORK) or None),
        session=session,
    )
    return replace(request, agents=choose_agents(invocation, agent, request) if agent else ())


def session_options(
    *,
    weights: str,
    seed: int,
    gpu: bool,
    threads: int | None,
    precision: str | None = None,
    cudnn_benchmark: bool | None = None,
) -> SessionOptions:
    """Returns the options with which a model is opened.

    Raises:
        ConfigurationError: A value is invalid.
    """
    ranges.check_number("seed", seed, ranges.SEED)
    ranges.check_number("threads", threads, ranges.COUNT)
    device = Device(DeviceKind.GPU, 0) if gpu else CPU
    return SessionOptions(
        device=device,
        threads=threads,
        weights=_weights(weights),
        seed=seed,
        precision=None if precision is None else _precision(precision),
        cudnn_benchmark=cudnn_benchmark,
    )


def evaluation_request(
    invocation: Invocation,
    model: str | os.PathLike[str] | object,
    *,
    dataset: DatasetChoice,
    synthetic: bool,
    batch_size: int | None,
    seed: int,
    length: Mapping[str, Any],
    **system: Any,
) -> EvaluationRequest:
    """Returns the request of an evaluation over a dataset.

    Args:
        invocation: The configuration.
        model: The model.
        dataset: The inputs.
        synthetic: Whether the inputs are random tensors instead.
        batch_size: Inputs in a batch; None leaves it to the model and its inputs.
        seed: Draws random weights and tensors.
        length: The fields of ``BatchOptions`` that say how long to measure.
        system: The other arguments of ``system_request``.

    Raises:
        InferometerError: A value is invalid, or the model cannot be read.
    """
    chosen = system_request(invocation, model, dataset=dataset, seed=seed, **system)
    size = default_batch_size(chosen, dataset, invocation.catalog) if batch_size is None else batch_size
    # a model without a manifest is probably untested: if one input fails, all of them will
    options = BatchOptions(size, size, fail_on_error=chosen.given is not None, **length)
    dataset = inputs_for(chosen, dataset, synthetic=synthetic, batch_size=size, seed=seed)
    return EvaluationRequest(system=chosen, dataset=dataset, options=options)


def dataset_choice(
    dataset: str | os.PathLike[str] | None,
    inputs: NDArray[Any] | None = None,
    sample_ids: Sequence[str] | None = None,
) -> DatasetChoice:
    """Returns the choice of dataset. A non-string, an existing path or a string with a separator is a path.

    Any other string is the name of a dataset.

    Raises:
        ConfigurationError: ``inputs`` is not an array of samples, or is combined with a dataset or
            ``sample_ids``; or ``sample_ids`` is not a list.
    """
    if isinstance(sample_ids, str):
        raise ConfigurationError(f'sample_ids is "{printable(sample_ids)}"; give a list of ids')
    chosen = _whole(dataset, inputs)
    return chosen if sample_ids is None else replace(chosen, sample_ids=tuple(map(str, sample_ids)))


def _whole(dataset: str | os.PathLike[str] | None, inputs: NDArray[Any] | None) -> DatasetChoice:
    if inputs is not None:
        if dataset is not None:
            raise ConfigurationError("inputs and dataset both name inputs; give one of them")
        return DatasetChoice(array=samples_of(inputs))
    if dataset is None:
        return DatasetChoice()
    if isinstance(dataset, str) and os.sep not in dataset and not Path(dataset).exists():
        return DatasetChoice(name=dataset)
    return DatasetChoice(path=Path(dataset))


def _weights(name: str) -> Weights:
    try:
        return Weights(name.lower())
    except ValueError as error:
        known = " or ".join(each.value for each in Weights)
        raise ConfigurationError(f'unknown weights "{name}"; give {known}') from error


def _precision(name: str) -> Precision:
    try:
        return Precision(name.lower())
    except ValueError as error:
        known = ", ".join(each.value for each in Precision)
        raise ConfigurationError(f'unknown precision "{name}"; give one of {known}') from error
