"""Builds job requests from the arguments of the library's functions, and finds the model that they name.

A model is a name, a DLBS id (the name of an architecture), a file or an object in memory; inputs are arrays.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.artifacts.files import InputSignature
from inferometer.agent.inference.given_models import (
    GivenModel,
    Wanted,
    is_model_file,
    model_of_file,
    model_of_object,
)
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.client.api.discovery import choose_agents
from inferometer.client.api.invocation import FRAMEWORK, Invocation
from inferometer.evaluators.jobs.job import DatasetChoice, SystemRequest, default_batch_size, inputs_for
from inferometer.evaluators.jobs.options import values_of
from inferometer.evaluators.jobs.request import (
    BatchSystemOptions,
    DatasetOptions,
    ScoreOptions,
    SystemOptions,
)
from inferometer.evaluators.kinds.batches.request import BatchOptions, EvaluationRequest, UrlsOptions
from inferometer.manifests.errors import ConfigurationError, one_line, printable

_log = logging.getLogger(__name__)


def given_model(
    invocation: Invocation, model: object, dataset: DatasetChoice, shape: tuple[int, ...] | None = None
) -> GivenModel | None:
    """Returns a model that needs no manifest; None if ``model`` is the name of a manifest.

    A string is treated as a file if it contains a path separator or has the suffix of a model file. The input
    shape is that of the given array, otherwise ``shape``, otherwise the model's own.

    Raises:
        ConfigurationError: No framework accepts such an object, or its input cannot be described.
        ArtifactError: The file does not exist, or is not a readable model.
    """
    registry, inputs = invocation.registry, dataset.array
    array = inputs if isinstance(inputs, np.ndarray) else None
    wanted = Wanted(
        shape=shape if array is None else array.shape[1:],
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
        invocation.notify(f"{found}; to correct this, write a manifest with agent manifest init")
    for note in rest:
        _log.info(note)
    return given


def _examples(arrays: Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]]) -> tuple[InputSignature, ...]:
    named = arrays.items() if isinstance(arrays, Mapping) else (("", array) for array in arrays)
    return tuple(InputSignature(name, each.dtype.name, (None, *each.shape[1:])) for name, each in named)


def samples_of(inputs: object) -> NDArray[Any] | dict[str, NDArray[Any]] | tuple[NDArray[Any], ...]:
    """Returns the array of samples; for a model with several inputs, one array for each, by name or in order.

    Raises:
        ConfigurationError: An input is not a NumPy array, or contains no samples.
    """
    if isinstance(inputs, Mapping) and inputs:
        return {str(name): _samples(array) for name, array in inputs.items()}
    if isinstance(inputs, tuple) and inputs:
        return tuple(map(_samples, inputs))
    return _samples(inputs)


def _samples(inputs: object) -> NDArray[Any]:
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


class SystemArguments:
    """A model and the place where it runs, as specified by the library's arguments; see ``given_model``.

    Removes the arguments that specify the model and its place from ``given``; ``kind`` declares them.
    """

    def __init__(self, given: MutableMapping[str, Any], kind: type[SystemOptions] = SystemOptions) -> None:
        self._options = kind(**values_of(kind, given, arguments=True))

    def request(
        self,
        invocation: Invocation,
        model: str | os.PathLike[str] | object,
        dataset: DatasetChoice = DatasetChoice(),  # noqa: B008 - frozen
    ) -> SystemRequest:
        """Returns the request.

        Raises:
            InferometerError: The model cannot be read, or no agent fits.
        """
        options, given = self._options, given_model(invocation, model, dataset, self._options.input_shape)
        if given is not None:
            if options.model_version is not None or options.framework_name is not None:
                raise ConfigurationError("version and framework choose a manifest, but this model needs none")
        elif options.input_shape is not None:
            raise ConfigurationError("input_shape is only for a model without a manifest; leave it out")
        else:
            framework = options.framework_name or os.environ.get(FRAMEWORK) or None
            options = replace(options, model_name=str(model), framework_name=framework)
        request, agent = options.request(given), options.agent_address
        return replace(request, agents=choose_agents(invocation, agent, request) if agent else ())


def take_system(
    invocation: Invocation,
    values: MutableMapping[str, Any],
    named: Collection[str],
    dataset: DatasetChoice = DatasetChoice(),  # noqa: B008 - frozen
    kind: type[SystemOptions] = SystemOptions,
) -> SystemRequest:
    """Returns the request for a model and the place where it runs, from command-line options.

    Removes those options, which ``kind`` declares, from ``values``. ``named`` are the names of the options
    that are set on the command line, not by environment or default.

    Raises:
        ConfigurationError: A value is invalid, or no agent fits.
        ArtifactError: The file of the model does not exist, or cannot be read.
        AgentError: No agent that fits is alive.
        StoreError: The database of agents cannot be reached.
    """
    options = kind(**values_of(kind, values))
    request = options.request(_model_of_path(invocation, options, named, dataset))
    return replace(request, agents=choose_agents(invocation, options.agent_address, request))


def _model_of_path(
    invocation: Invocation, options: SystemOptions, named: Collection[str], dataset: DatasetChoice
) -> GivenModel | None:
    """Returns the model at ``model_path``, and reports what was detected and what was assumed."""
    path, shape, framework = options.model_path, options.input_shape, options.framework_name
    if path is None:
        if shape is not None:
            raise ConfigurationError("input_shape is only for a model_path; leave it out")
        return None
    if options.model_version is not None:
        raise ConfigurationError("model_version chooses a manifest, but model_path needs none; leave it out")
    if options.agent_address or invocation.configuration.agent:
        raise ConfigurationError(
            "model_path works only in this process and cannot be combined with an agent, which runs only the "
            "models in its manifests; write one with agent manifest init"
        )
    wanted = Wanted(
        shape=shape,
        images=dataset.is_named,
        tensors=not dataset.holds_images,
        name=options.model_name if "model_name" in named else None,
    )
    given = model_of_file(path, invocation.registry, wanted)
    own = given.manifest.framework.name
    if framework is not None and "framework_name" in named and framework.casefold() != own.casefold():
        raise ConfigurationError(f"{path}: is for {own}; found framework_name {framework}")
    found, *rest = given.notes
    assumed = given.manifest.inputs[0].type == "image"
    hint = "; to correct this, write a manifest with agent manifest init" if assumed else ""
    for note in (found + hint, *rest):
        invocation.notify(printable(note))
    return given


def _read_ids(given: str | None) -> tuple[str, ...] | None:
    """Reads ids from a file with one id per line, or from a list separated by commas."""
    if given is None:
        return None
    path = Path(given)
    try:
        is_file = path.is_file()
        written = path.read_text(encoding="utf-8-sig").splitlines() if is_file else given.split(",")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"sample_ids {printable(given)}: cannot be read: {one_line(error)}"
        ) from error
    found = tuple(dict.fromkeys(each.strip() for each in written if each.strip()))
    if not found:
        raise ConfigurationError(
            f"sample_ids {printable(given)}: contains no ids; give a list of ids, or a file with one per line"
        )
    return found


def inputs_of(given: MutableMapping[str, Any], *, arguments: bool = False) -> DatasetOptions:
    """Removes the options that select inputs from ``given`` and returns them; ids are given as text.

    With ``arguments``, ``given`` contains the library's arguments instead of command-line options.
    """
    if not arguments:
        given["sample_ids"] = _read_ids(given.get("sample_ids"))
    return DatasetOptions(**values_of(DatasetOptions, given, arguments=arguments))


def scoring_of(given: MutableMapping[str, Any], *, arguments: bool = False) -> ScoreOptions:
    """Removes the options that determine how predictions are counted from ``given``; see ``inputs_of``."""
    return ScoreOptions(**values_of(ScoreOptions, given, arguments=arguments))


class EvaluationChoice:
    """A user's request for a batch-by-batch evaluation, except for its model and batch size.

    Args:
        given: The values of the options; those of the evaluation are removed.
        arguments: Whether the options have the names of the library's arguments.

    Attributes:
        inputs: The options of the inputs.
        urls: The fields of a ``DatasetChoice`` for URLs; empty if no URLs are given.
        batches: The given fields of ``BatchOptions``.
    """

    def __init__(self, given: MutableMapping[str, Any], *, arguments: bool = False) -> None:
        self.batches = values_of(BatchOptions, given, arguments=arguments)
        self.inputs = inputs_of(given, arguments=arguments)
        urls = values_of(UrlsOptions, given, arguments=arguments)
        if urls and "urls_file_path" not in urls:
            raise ConfigurationError("duplicate_input repeats the list of urls_file_path; give both")
        self.urls = UrlsOptions(**urls).choice() if urls else {}
        self._fields = values_of(EvaluationRequest, given, arguments=arguments)

    def request(
        self,
        invocation: Invocation,
        system: SystemRequest,
        dataset: DatasetChoice,
        batch_size: int | None,
        **more: Any,
    ) -> EvaluationRequest:
        """Returns the request; ``more`` contains further fields of the request.

        The batch size defaults to that of ``default_batch_size``. If the evaluation is leveled, the trace
        level defaults to the deepest one.
        """
        if batch_size is None:
            batch_size = default_batch_size(system, dataset, invocation.catalog)
        partition = self.batches.get("partition_list_size") or batch_size
        batches = BatchOptions(**{**self.batches, "batch_size": batch_size, "partition_list_size": partition})
        parts = self.batches.get("num_file_parts")
        inputs = inputs_for(
            system,
            dataset,
            synthetic=self.inputs.synthetic,
            batch_size=batch_size,
            seed=system.session.seed,
            least=partition * max(parts or 0, batches.warmup_num_file_parts),
        )
        deepest = {}
        if self._fields.get("leveled"):
            on_gpu = system.session.device.is_gpu
            level = TraceLevel.SYSTEM_LIBRARY_TRACE if on_gpu else TraceLevel.FRAMEWORK_TRACE
            deepest = {"trace_level": level}
        return EvaluationRequest(
            system=system,
            dataset=inputs,
            options=batches,
            measure_enough=parts is None,
            **deepest | self._fields | more,
        )


def evaluation_request(
    invocation: Invocation,
    function: str,
    model: str | os.PathLike[str] | object,
    dataset: str | os.PathLike[str] | None,
    inputs: NDArray[Any] | None,
    given: MutableMapping[str, Any],
) -> EvaluationRequest:
    """Returns the request for an evaluation from the arguments of a library function.

    Raises:
        InferometerError: A value is invalid, or the model cannot be read.
        TypeError: The function has no such argument.
    """
    named, choice = SystemArguments(given, BatchSystemOptions), EvaluationChoice(given, arguments=True)
    refuse_unknown(function, given)
    chosen = dataset_choice(dataset, inputs, choice.inputs, **choice.urls)
    system = named.request(invocation, model, chosen)
    # a model without a manifest is probably untested: if one input fails, all of them will
    choice.batches.setdefault("fail_on_error", system.given is not None)
    return choice.request(invocation, system, chosen, choice.batches.get("batch_size"))


def refuse_unknown(function: str, left: Mapping[str, Any]) -> None:
    """Raises TypeError for an argument that a library function does not have."""
    for name in left:
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def dataset_choice(
    dataset: str | os.PathLike[str] | None,
    inputs: NDArray[Any] | None = None,
    options: DatasetOptions = DatasetOptions(),  # noqa: B008 - frozen
    **more: Any,
) -> DatasetChoice:
    """Returns the choice of dataset.

    A non-string, an existing path or a string with a separator is treated as a path, other strings as names.

    Raises:
        ConfigurationError: ``inputs`` is not an array of samples, or is combined with a dataset or
            ``sample_ids``.
    """
    if dataset is not None and "urls_path" in more:
        raise ConfigurationError("urls_file_path and dataset both name inputs; give one of them")
    if inputs is not None:
        if dataset is not None:
            raise ConfigurationError("inputs and dataset both name inputs; give one of them")
        return options.choice(array=samples_of(inputs), **more)
    if dataset is None:
        return options.choice(**more)
    if isinstance(dataset, str) and os.sep not in dataset and not Path(dataset).exists():
        return options.choice(name=dataset, **more)
    return options.choice(path=Path(dataset), **more)
