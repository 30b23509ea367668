"""Builds job requests from the arguments of the library's functions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from inferometer.agent.hardware.device import CPU, Device, DeviceKind
from inferometer.agent.inference.predictor import Precision, Weights
from inferometer.agent.inference.session import SessionOptions
from inferometer.client.api.invocation import Invocation
from inferometer.client.discovery.choosing import choose_agents
from inferometer.client.library.invocation import FRAMEWORK
from inferometer.client.library.models import given_model, samples_of
from inferometer.evaluators.jobs import ranges
from inferometer.evaluators.jobs.requests import (
    DatasetChoice,
    EvaluationRequest,
    SystemRequest,
    default_batch_size,
    inputs_for,
)
from inferometer.evaluators.kinds.batches.measurement import BatchOptions
from inferometer.manifests.errors import ConfigurationError, printable


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
