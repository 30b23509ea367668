"""Finds, lends, loads and unloads models by the names that clients of the protocol use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any
from weakref import WeakKeyDictionary

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, select_model
from inferometer.agent.inference.stages import SystemDescription
from inferometer.agent.open_inference.codec import (
    TEXT_OUTPUT,
    TensorSignature,
    canonical_version,
    datatype_named,
    datatype_of,
    inputs_of,
    titled,
    v2_version,
)
from inferometer.agent.preprocessing.inputs import blank
from inferometer.agent.server.v2.model_messages import LoadParameters
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_model import Lease, LoadedModel, ServedEngine, ServedModel
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
    FrameworkUnavailableError,
    InputError,
    NotFoundError,
    PredictionError,
    UnknownModelError,
    one_line,
)
from inferometer.manifests.inputs import DYNAMIC_AXIS
from inferometer.manifests.schema import ModelManifest
from inferometer.manifests.versions import exactly

FRAMEWORK_MARK = "@"
"""Separates the name of a model from the name of the framework that runs it."""
NOT_HERE = (NotFoundError, FrameworkUnavailableError, ArtifactError)
"""The errors that mean that an existing model cannot be run here."""
_MAX_REMEMBERED = 4096
"""The maximum number of cached lookups by name and version."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """The model that a name and a version stand for.

    A request has at most ``max_batch_size`` inputs. ``version`` is spelled as in the protocol; ``title``
    names the model in errors.
    """

    manifest: ModelManifest
    options: SessionOptions
    batching: BatchingOptions
    max_batch_size: int
    key: ModelKey
    inputs: Mapping[str, TensorSignature]
    version: str
    title: str

    def is_like(self, other: FoundModel) -> bool:
        """Returns whether the other one is the same model with the same weights, perhaps served otherwise."""
        options = other.options
        same = replace(self.options, threads=options.threads, device=options.device) == options
        return same and self.manifest == other.manifest


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
    model is loaded on its first request. Parameters of a load apply to the name until a client unloads it. A
    request has at most ``max_inputs`` inputs.
    """

    def __init__(self, models: ServedModels, catalog: Catalog, registry: Registry, max_inputs: int) -> None:
        self._models = models
        self._catalog = catalog
        self._registry = registry
        self._max_inputs = max_inputs
        self._policies = models.options.versions
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
                found = self._look_for(
                    name, version, self._loaded_with.get(_key(name)) or self.defaults(name)
                )
                if len(self._found) >= _MAX_REMEMBERED:
                    self._found.clear()
                self._found[name, version] = found
        return found

    def defaults(self, name: str) -> LoadParameters:
        """Returns how a model is opened that no client has loaded."""
        options = self._models.options
        return LoadParameters(options.session, options.of(_split(name)[0]), self._max_inputs)

    def lease(self, found: FoundModel) -> Lease:
        """Lends a model that predicts until it is released; loads it if necessary."""
        found.manifest.require_predictions()
        return self._lease(found)

    def _lease(self, found: FoundModel) -> Lease[Any]:
        return self._models.lease_model(found.manifest, found.options, batching=found.batching)

    def lease_loaded(self, found: FoundModel) -> Lease | None:
        """Lends a model that predicts if it is loaded; otherwise returns None."""
        return None if found.manifest.generates else self._models.lease_loaded(found.key)

    def language_models(self) -> Iterator[str]:
        """Yields the names of the language models that can run here."""
        for name in dict.fromkeys(model.name for model in self._catalog.models if model.generates):
            with suppress(*NOT_HERE):
                yield self.find(name, "").manifest.name

    def lease_engine(self, name: str) -> Lease[ServedEngine]:
        """Lends the language model with a name, like ``lease``; raises as ``find`` does."""
        found = self.find(name, "")
        if not found.manifest.generates:
            raise UnknownModelError.of(name, self.language_models())
        return self._lease(found)

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

    def loaded(self, found: FoundModel) -> LoadedModel | None:
        """Returns a model if it is loaded, and otherwise None."""
        return self._models.models.get(found.key)

    def describe(self, found: FoundModel) -> tuple[tuple[TensorSignature, ...], SystemDescription]:
        """Loads a model, and returns its outputs and its description."""
        with self._lease(found) as model:
            outputs = (TEXT_OUTPUT,) if found.manifest.generates else self.outputs(model)
            return outputs, model.description

    def language_model(self, name: str, version: str) -> tuple[str, Callable[[], Lease[ServedEngine]]]:
        """Returns the version of a model, and what lends it, which may load it.

        Raises:
            InputError: The model generates no text.
            InferometerError: See ``find``.
        """
        found = self.find(name, version)
        if not found.manifest.generates:
            raise InputError(f"model {name} generates no text: its task is {found.manifest.output.type}")
        return found.version, partial(self._lease, found)

    def load(self, name: str, parameters: LoadParameters) -> None:
        """Loads a model, and unloads the previous model with that name if it is another one.

        The previous model answers requests until the new one is loaded, and then finishes those that it has
        accepted. Clients that open the model later, over either protocol, get the new one.

        Raises InferometerError if it cannot be found or loaded; in that case, nothing changes.
        """
        found, before = self._look_for(name, "", parameters), None
        with suppress(*NOT_HERE):
            replaced = self.find(name, "")
            before = self.loaded(replaced) if replaced.is_like(found) else None
        self._models.lease_model(
            found.manifest, found.options, batching=found.batching, keep=True, replaces=before
        ).release()
        with self._lock:
            loaded_with = self._loaded_with.get(_key(name)) or self.defaults(name)
            self._loaded_with[_key(name)] = parameters
            self._models.serve_as(found.manifest, parameters.settings)
            self._forget(name)
        with suppress(*NOT_HERE):
            replaced = self._look_for(name, "", loaded_with)
            if replaced.key != found.key:
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
            self._models.serve_as(model.manifest, None)
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
        settings, batching = parameters.settings, parameters.settings.batching
        device = settings.device.first(batching.instances)
        options = replace(parameters.options, threads=settings.threads, device=device)
        manifest = select_model(
            self._catalog,
            self._registry,
            model,
            self._constraint(name, version or parameters.version),
            framework,
            options.weights,
        )
        most = batching.max_batch_size if batching.max_batch_size > 1 else parameters.max_inputs
        return FoundModel(
            manifest,
            options,
            batching,
            min(most, self._max_inputs),
            ModelKey(manifest, options, batching),
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


def named(models: Sequence[LoadedModel]) -> Iterator[tuple[str, LoadedModel]]:
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
