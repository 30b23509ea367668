"""Finds, lends, loads and unloads models by the names that clients of the protocol use.

Also reads how a client loads a model: the parameters of ``RepositoryModelLoad``.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any
from weakref import WeakKeyDictionary

from inferometer.agent.hardware.environment import CPU, Device, DeviceKind, Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, select_model
from inferometer.agent.open_inference.codec import (
    TensorSignature,
    canonical_version,
    datatype_named,
    datatype_of,
    inputs_of,
    titled,
    v2_version,
)
from inferometer.agent.preprocessing.inputs import blank
from inferometer.agent.serving.loaded_models import Lease
from inferometer.agent.serving.served_model import ServedModel
from inferometer.agent.serving.served_models import (
    ModelKey,
    ModelState,
    ServedModels,
    VersionChoice,
    VersionPolicy,
)
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import (
    ArtifactError,
    ConfigurationError,
    FrameworkUnavailableError,
    NotFoundError,
    PredictionError,
    UnknownModelError,
    one_line,
    suggestion,
)
from inferometer.manifests.inputs import DYNAMIC_AXIS
from inferometer.manifests.schema import ModelManifest
from inferometer.manifests.versions import exactly
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

_CONFIG = "config"
_KNOWN = ("device", "seed", "threads", "version", "weights")
_DESCRIBING = {"name", "platform", "backend", "parameters"}
"""The configuration fields that clients may send: ``parameters``, and those without effect."""
_MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LoadParameters:
    """How to open a model; a ``version`` of None leaves the choice to the agent."""

    options: SessionOptions
    version: str | None = None


def read_load_parameters(
    parameters: Mapping[str, pb.ModelRepositoryParameter], defaults: SessionOptions
) -> LoadParameters:
    """Returns a request's load parameters; ``defaults`` are the options of models that no client has loaded.

    ``weights``, ``seed``, ``threads``, ``device`` and ``version`` are parameters of the request, or
    ``parameters`` in the JSON of ``config``, the only parameter that tritonclient sends.

    Raises:
        ConfigurationError: A parameter is unknown or invalid.
    """
    found: dict[str, str] = {}
    for key, parameter in parameters.items():
        if key.startswith("file:"):
            raise ConfigurationError("a client cannot send files; the agent's manifests define its models")
        if key == _CONFIG:
            found |= _read_config(parameter.string_param)
        elif key in _KNOWN:
            found[key] = _text(parameter)
        else:
            raise ConfigurationError(
                f"{titled('unknown parameter', key)}; {suggestion(key, (_CONFIG, *_KNOWN))}"
            )
    return _chosen(found, defaults)


def _text(parameter: pb.ModelRepositoryParameter) -> str:
    field = parameter.WhichOneof("parameter_choice")
    return "" if field in {None, "bytes_param"} else str(getattr(parameter, field))


def _read_config(text: str) -> dict[str, str]:
    """Returns a model configuration's parameters: ``{"parameters": {"weights": {"string_value": …}}}``."""
    try:
        config = json.loads(text)
        if not isinstance(config, dict):
            raise ValueError("no object")
        if refused := set(config) - _DESCRIBING:
            raise ConfigurationError(
                f"{titled('config has', min(refused))}, which a client cannot change here; "
                f"allowed: {', '.join(sorted(_DESCRIBING))}"
            )
        values: Mapping[str, Any] = config.get("parameters", {})
        found = {str(key): str(value["string_value"]) for key, value in values.items()}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ConfigurationError(
            'config: is not a model configuration in JSON; an example is {"parameters": {"weights": '
            '{"string_value": "random"}}}'
        ) from error
    for key in found:
        if key not in _KNOWN:
            raise ConfigurationError(f"config: {titled('unknown parameter', key)}; {suggestion(key, _KNOWN)}")
    return found


def _chosen(found: Mapping[str, str], defaults: SessionOptions) -> LoadParameters:
    options = defaults
    if (weights := found.get("weights")) is not None:
        if weights not in {kind.value for kind in Weights}:
            known = ", ".join(kind.value for kind in Weights)
            raise ConfigurationError(f"weights: {titled('found', weights)}; allowed: {known}")
        options = replace(options, weights=Weights(weights))
    if (seed := found.get("seed")) is not None:
        options = replace(options, seed=_whole("seed", seed, 0, _MAX_SEED))
    if (threads := found.get("threads")) is not None:
        options = replace(options, threads=_whole("threads", threads, 1, _MAX_SEED))
    if (device := found.get("device")) is not None:
        options = replace(options, device=_device(device))
    return LoadParameters(options, found.get("version") or None)


def _whole(name: str, text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"\d{1,19}", text) or not least <= int(text) <= most:
        raise ConfigurationError(f"{name}: {titled('found', text)}; allowed: a whole number from {least} on")
    return int(text)


def _device(text: str) -> Device:
    if text == "cpu":
        return CPU
    if found := re.fullmatch(r"gpu(?::(\d{1,4}))?", text):
        return Device(DeviceKind.GPU, int(found[1] or 0))
    raise ConfigurationError(f"device: {titled('found', text)}; allowed: cpu, gpu or gpu:N")


FRAMEWORK_MARK = "@"
"""Separates the name of a model from the name of the framework that runs it."""
NOT_HERE = (NotFoundError, FrameworkUnavailableError, ArtifactError)
"""The errors that mean that an existing model cannot be run here."""
_MAX_REMEMBERED = 4096
"""The maximum number of cached lookups by name and version."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """The model that a name and a version stand for.

    Attributes:
        manifest: The model.
        options: The options that it is loaded with.
        key: Its key among the loaded models.
        inputs: Its inputs by their names.
        version: Its version as the protocol spells it.
        title: Its name in errors.
    """

    manifest: ModelManifest
    options: SessionOptions
    key: ModelKey
    inputs: Mapping[str, TensorSignature]
    version: str
    title: str


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The entry of one model in the index."""

    name: str
    version: str
    state: ModelState
    reason: str = ""


class Repository:
    """The agent's models by their names in the protocol. Thread-safe.

    ``ResNet50`` is the model in the first installed framework that has it, ``ResNet50@PyTorch`` the model in
    PyTorch; an empty version means the loaded one, or else the highest that the version policy serves.
    Versions are spelled as in ``v2_version``; clients may also use a manifest's spelling or a constraint. A
    model is loaded on its first request. Parameters of a load apply to the name until a client unloads it.
    """

    def __init__(self, models: ServedModels, catalog: Catalog, registry: Registry) -> None:
        self._models = models
        self._catalog = catalog
        self._registry = registry
        self.batching = models.options.batching
        """How requests of every model are queued and batched."""
        self._policies = models.options.versions
        self._defaults = LoadParameters(models.options.session)
        self._lock = threading.Lock()
        self._loaded_with: dict[str, LoadParameters] = {}
        self._found: dict[tuple[str, str], FoundModel] = {}
        self._outputs: WeakKeyDictionary[ServedModel, tuple[TensorSignature, ...]] = WeakKeyDictionary()

    def find(self, name: str, version: str) -> FoundModel:
        """Returns the model with a name; an empty version means the loaded one, or else the highest.

        Raises:
            UnknownModelError, UnknownFrameworkError: There is no model with that name, version or framework,
                or the version policy does not serve it.
            FrameworkUnavailableError, ArtifactError: The model cannot be run here, or not with its weights.
            ConfigurationError: The version is invalid.
        """
        found = self._found.get((name, version))
        if found is None:
            # together with what it is loaded with, so that nothing outdated is remembered
            with self._lock:
                found = self._look_for(name, version, self._loaded_with.get(_key(name), self._defaults))
                if len(self._found) >= _MAX_REMEMBERED:
                    self._found.clear()
                self._found[name, version] = found
        return found

    def lease(self, found: FoundModel) -> Lease:
        """Lends a model until it is released, and loads it if necessary; see ``ServedModels.lease_model``."""
        return self._models.lease_model(found.manifest, found.options)

    def lease_loaded(self, found: FoundModel) -> Lease | None:
        """Lends a model if it is loaded; otherwise returns None."""
        return self._models.lease_loaded(found.key)

    def known_outputs(self, model: ServedModel) -> tuple[TensorSignature, ...] | None:
        """Returns the outputs of a model if they are already known; see ``outputs``."""
        return self._outputs.get(model)

    def outputs(self, model: ServedModel) -> tuple[TensorSignature, ...]:
        """Returns the outputs of a model as far as they can be determined; empty if none can.

        Manifests do not describe outputs. If the model does not declare them itself, it is run on zeros, in
        two sizes if it has dynamic axes. Output axes that differ are then dynamic too, or all axes if the
        model accepts only one of the sizes. It is not an error if it accepts neither.
        """
        known = self._outputs.get(model)
        if known is None:
            known = self._outputs[model] = _outputs_of(model)
        return known

    def loaded(self, found: FoundModel) -> ServedModel | None:
        """Returns a model if it is loaded, and otherwise None."""
        return self._models.models.get(found.key)

    def load(self, name: str, parameters: LoadParameters) -> None:
        """Loads a model, and unloads the previous model with that name if it is another one.

        Raises InferometerError if it cannot be found or loaded; in that case, nothing changes.
        """
        found = self._look_for(name, "", parameters)
        self._models.lease_model(found.manifest, found.options, keep=True).release()
        with self._lock:
            before = self._loaded_with.get(_key(name), self._defaults)
            self._loaded_with[_key(name)] = parameters
            self._forget(name)
        with suppress(*NOT_HERE):
            replaced = self._look_for(name, "", before)
            if (replaced.manifest, replaced.options) != (found.manifest, found.options):
                self._models.unload(replaced.key)

    def unload(self, name: str) -> None:
        """Unloads all versions of a model; a model in use is freed when its last user leaves.

        Raises UnknownModelError if no model has that name.
        """
        versions = self._versions(name)
        found = []
        with suppress(*NOT_HERE):
            found.append(self.find(name, ""))
        for version in versions:
            with suppress(*NOT_HERE):
                found.append(self.find(name, version))
        for model in found:
            self._models.unload(model.key)
        with self._lock:
            self._loaded_with.pop(_key(name), None)
            self._forget(name)

    def versions(self, name: str) -> tuple[str, ...]:
        """Returns the served versions of a model in the protocol's spelling, highest first."""
        return tuple(map(v2_version, self.version_policy(name).served(self._versions(name))))

    def version_policy(self, name: str) -> VersionPolicy:
        """Returns which versions of a model are served."""
        return self._policies.of(_split(name)[0])

    def _versions(self, name: str) -> tuple[str, ...]:
        """Returns a model's versions as its manifests spell them, highest first and without equal ones."""
        model, framework = _split(name)
        found: dict[str, str] = {}
        for manifest in self._catalog.find_models(model):
            if framework is None or manifest.framework.name.casefold() == framework.casefold():
                found.setdefault(canonical_version(manifest.version), manifest.version)
        return tuple(found.values())

    def index(self) -> Iterator[IndexEntry]:
        """Yields all versions of every model that can be requested and run.

        A model that exists in several frameworks is also listed as ``name@framework``.
        """
        by_name: dict[str, list[ModelManifest]] = {}
        for manifest in self._catalog.models:
            by_name.setdefault(manifest.name, []).append(manifest)
        for name, manifests in by_name.items():
            frameworks = dict.fromkeys(manifest.framework.name for manifest in manifests)
            names = [name]
            if len(frameworks) > 1:
                names += [f"{name}{FRAMEWORK_MARK}{framework}" for framework in frameworks]
            for one in names:
                for version in self.versions(one):
                    yield self._entry(one, version)

    def _entry(self, name: str, version: str) -> IndexEntry:
        try:
            found = self.find(name, version)
        except NOT_HERE as error:
            return IndexEntry(name, version, ModelState.UNLOADED, str(error))
        state = self._models.state_of(found.key)
        return IndexEntry(name, version, state, "" if state is ModelState.LOADED else state.value)

    def _look_for(self, name: str, version: str, parameters: LoadParameters) -> FoundModel:
        model, framework = _split(name)
        options = parameters.options
        manifest = select_model(
            self._catalog,
            self._registry,
            model,
            self._constraint(name, version or parameters.version),
            framework,
            options.weights,
        )
        return FoundModel(
            manifest,
            options,
            ModelKey(manifest, options),
            inputs_of(manifest),
            v2_version(manifest.version),
            f"model {manifest.name} {manifest.version}",
        )

    def _constraint(self, name: str, wanted: str | None) -> str | None:
        """Returns a constraint that limits a requested version to the served ones; None allows any."""
        versions, policy = self._versions(name), self.version_policy(name)
        asked = None if wanted is None else canonical_version(wanted)
        fitting = {canonical_version(version) for version in versions if v2_version(version) == wanted}
        fitting = fitting or {version for version in map(canonical_version, versions) if version == asked}
        if not versions or (policy.choice is VersionChoice.ALL and not fitting):
            return wanted
        if not fitting:
            found = self._catalog.find_models(_split(name)[0], wanted)
            fitting = {canonical_version(manifest.version) for manifest in found}
        served = policy.served(versions)
        chosen = [exactly(version) for version in served if canonical_version(version) in fitting]
        if not chosen:
            known = ", ".join(map(v2_version, served)) or "none"
            raise UnknownModelError(
                f"{titled('model', name)} has no version {one_line(wanted or 'at all', 80)} under version "
                f"policy {policy}; it serves: {known}"
            )
        return " || ".join(chosen)

    def _forget(self, name: str) -> None:
        """Clears the cached lookups of a name, which may have changed. The caller holds the lock."""
        self._found = {key: found for key, found in self._found.items() if _key(key[0]) != _key(name)}


def _outputs_of(model: ServedModel) -> tuple[TensorSignature, ...]:
    """Returns the outputs that a model declares, or else the outputs of a prediction."""
    stated = model.session.declared_outputs()
    declared = tuple(
        TensorSignature(each.name, datatype, _sides((each.shape or ())[1:]))
        for each in stated
        if (datatype := datatype_named(each.element_type)) is not None
    )
    dynamic = any(each.is_dynamic for each in model.manifest.tensors)
    # sizes that are left open are those of dynamic axes, or a prediction tells them, as it tells which of the
    # outputs with a fixed first axis are of the whole batch
    if declared and all(
        each.shape and each.shape[0] in (None, 1) and (dynamic or None not in each.shape[1:])
        for each in stated
    ):
        return declared
    return _predicted_outputs(model, dynamic=dynamic) or declared


def _sides(sizes: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(DYNAMIC_AXIS if size is None else size for size in sizes)


def _predicted_outputs(model: ServedModel, *, dynamic: bool) -> tuple[TensorSignature, ...]:
    """Returns the outputs predicted for zeros; empty if this fails or the protocol cannot represent them."""
    tensors, found = model.manifest.tensors, []
    shapes = [{each.name: each.sized() for each in tensors}]
    if dynamic:
        shapes.append({each.name: each.sized_otherwise() for each in tensors})
    for each in shapes:
        with suppress(PredictionError):
            found.append(_outputs_for(model, each))
    if not found or not dynamic:
        return found[0] if found else ()
    others = {each.name: each.dimensions for each in found[1]} if len(found) > 1 else {}
    return tuple(
        replace(
            each,
            dimensions=tuple(
                side if side == other else DYNAMIC_AXIS
                for side, other in zip_longest(each.dimensions, others.get(each.name, ()))
            )[: len(each.dimensions)],
        )
        for each in found[0]
    )


def _outputs_for(model: ServedModel, shapes: Mapping[str, tuple[int, ...]]) -> tuple[TensorSignature, ...]:
    tensors = model.manifest.tensors
    inferred = model.session.infer({each.name: blank(each, (1, *shapes[each.name])) for each in tensors})
    whole = model.session.whole_batch_outputs(inferred.outputs, 1)
    return tuple(
        TensorSignature(name, datatype_of(array.dtype), array.shape[name not in whole :], name in whole)
        for name, array in inferred.outputs.items()
    )


def named(models: Sequence[ServedModel]) -> Iterator[tuple[str, ServedModel]]:
    """Yields models with unambiguous names, which include the framework if several models share a name."""
    frameworks: dict[str, set[str]] = {}
    for model in models:
        frameworks.setdefault(model.manifest.name, set()).add(model.manifest.framework.name)
    for model in models:
        name, framework = model.manifest.name, model.manifest.framework.name
        yield (f"{name}{FRAMEWORK_MARK}{framework}" if len(frameworks[name]) > 1 else name), model


def _split(name: str) -> tuple[str, str | None]:
    """Splits a name into those of the model and, if it has one, the framework."""
    model, mark, framework = name.rpartition(FRAMEWORK_MARK)
    return (model, framework) if mark and model else (name, None)


def _key(name: str) -> str:
    return name.strip().casefold()
