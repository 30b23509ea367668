"""The models that an agent serves, each loaded once for all clients with the same options."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from inferometer.agent.inference.predictor import Precision, has_own_precision
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import Session, SessionOptions
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.loaded_models import Borrowers, Lease, LoadedModels, Loading
from inferometer.agent.serving.memory import file_bytes, used_bytes
from inferometer.agent.serving.observers import QueueObserver
from inferometer.agent.serving.served_model import ServedModel
from inferometer.agent.serving.version_policy import VersionPolicies
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.manifests.schema import ModelManifest


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """How an agent serves the models that its clients share.

    Attributes:
        batching: How requests are batched.
        session: The options of models that are requested by name alone; its ``threads`` also hold for
            sessions whose client names no number.
        memory_limit_bytes: The most memory that models take together on a device; None for no limit.
        predict_timeout_s: How long a prediction may take, in seconds; what waits for one that takes longer is
            refused. None for any time.
        versions: Which versions of models clients of the Open Inference Protocol see.
    """

    batching: BatchingOptions = field(default_factory=BatchingOptions)
    session: SessionOptions = field(default_factory=SessionOptions)
    memory_limit_bytes: int | None = None
    predict_timeout_s: float | None = None
    versions: VersionPolicies = field(default_factory=VersionPolicies)

    @property
    def predict_timeout_ns(self) -> int | None:
        """The same in nanoseconds."""
        return None if self.predict_timeout_s is None else int(self.predict_timeout_s * 1e9)

    @property
    def shares(self) -> bool:
        """Whether clients that open the same model with the same options share one."""
        return self.batching.max_batch_size > 1 or self.memory_limit_bytes is not None


class ModelState(str, Enum):
    """Where a model is between the disk and the device."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"


class ModelKey:
    """What two have in common that share a loaded model: the model, and its options. Hashable.

    It is hashed once: the options have many parts.
    """

    __slots__ = ("_hash", "_parts")

    def __init__(self, manifest: ModelManifest, options: SessionOptions) -> None:
        framework = manifest.framework
        if options.precision is None and not has_own_precision(manifest):  # which a client can also ask for
            options = replace(options, precision=Precision.FLOAT32)
        name = manifest.name.casefold()
        self._parts = (name, manifest.version, framework.name.casefold(), framework.version, options)
        self._hash = hash(self._parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelKey) and self._parts == other._parts

    def __hash__(self) -> int:
        return self._hash


class ServedModels:
    """Loads, lends and unloads models. Thread-safe.

    A model that several ask for with the same options is loaded once, by ``open_model``, and its requests
    share a queue. At most ``limit`` are loaded; one that was unused for ``idle_s`` seconds is unloaded,
    unless it is to stay. ``clock`` is that of deadlines, in nanoseconds. ``borrowers`` give up models that
    they do not use.
    """

    def __init__(
        self,
        registry: Registry,
        open_model: Callable[[ModelManifest, SessionOptions, TraceScope | None], Session],
        options: ServingOptions,
        *,
        limit: int = 16,
        idle_s: float = 600.0,
        clock: Callable[[], int] = time.perf_counter_ns,
        observer: QueueObserver | None = None,
        borrowers: Borrowers | None = None,
    ) -> None:
        self._observer = observer
        self.options = options
        self.clock = clock
        self._registry = registry
        self._open_model = open_model
        self._loaded = LoadedModels(
            limit, idle_s, options.memory_limit_bytes, used_bytes, lambda: clock() / 1e9, borrowers
        )

    def __len__(self) -> int:
        """The number of models that are loaded, or being loaded, or not yet freed."""
        return len(self._loaded)

    @property
    def loaded(self) -> tuple[ServedModel, ...]:
        """Every model that is loaded, whatever it was opened with."""
        return tuple(self._loaded.models.values())

    @property
    def is_full(self) -> bool:
        """Whether nobody else can be served: each model is one borrower's own, with no place for more."""
        return self._loaded.is_full

    def model_of(self, manifest: ModelManifest, options: SessionOptions) -> ServedModel | None:
        """Returns a model if it is loaded."""
        return self._loaded.models.get(ModelKey(manifest, options))

    def state_of(self, manifest: ModelManifest, options: SessionOptions) -> ModelState:
        """Returns whether a model is loaded."""
        key = ModelKey(manifest, options)
        if key in self._loaded.models:
            return ModelState.LOADED
        return ModelState.LOADING if self._loaded.is_loading(key) else ModelState.UNLOADED

    def unload_of(self, manifest: ModelManifest, options: SessionOptions) -> None:
        """Unloads a model; one in use is freed by the last that leaves it."""
        self._loaded.unload(ModelKey(manifest, options))

    def lease(
        self,
        manifest: ModelManifest,
        options: SessionOptions | None = None,
        *,
        shared: bool = True,
        keep: bool = False,
        trace: TraceScope | None = None,
    ) -> Lease:
        """Lends a model until it is released, and loads it if it is not, with the span of that in ``trace``.

        Without options it is opened with those of models that are requested by name alone. If it is not
        ``shared``, it is the caller's own, and unloaded when it is released. With ``keep`` it stays loaded
        although nobody uses it for long.

        Raises:
            MemoryLimitError, SessionLimitError: There is no room for it beside the models in use.
            InferometerError: It cannot be loaded; see ``agent.inference.session.open_session``.
        """
        chosen = options or self.options.session
        key = ModelKey(manifest, chosen) if shared else None
        if key is not None and (lease := self._loaded.lease_loaded(key, keep=keep)):
            return lease

        def load(on_closed: Callable[[], None]) -> ServedModel:
            session = self._open_model(manifest, chosen, trace)
            return ServedModel(
                session,
                self.options.batching,
                clock=self.clock,
                on_closed=on_closed,
                predict_timeout_ns=self.options.predict_timeout_ns,
                observer=self._observer,
            )

        if self.options.memory_limit_bytes is not None:
            # what the framework itself takes is not the model's
            self._registry.find(manifest.framework.name).load()
        name = f"{manifest.name} {manifest.version}"
        loading = Loading(name, chosen.device, file_bytes(manifest, chosen.weights), load)
        return self._loaded.lease(key, loading, keep=keep)

    def lease_loaded(self, key: ModelKey) -> Lease | None:
        """Lends a model that several may use, if it is loaded."""
        return self._loaded.lease_loaded(key)

    def close_idle(self) -> int:
        """Unloads the models that nobody has used for too long, and returns their number."""
        return self._loaded.close_idle()

    def close(self) -> None:
        """Loads no more models, and unloads every model; one in use when its last user leaves."""
        self._loaded.close()

    def wait_for_none(self, timeout_s: float) -> bool:
        """Waits until no model is loaded; False if some still are after that time."""
        return self._loaded.wait_for_none(timeout_s)
