"""The models that an agent serves to all its clients, each loaded once for all that ask alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from agent.batching import BatchingOptions
from agent.registry import Registry
from agent.server.models.loaded_models import LoadedModels
from agent.server.models.memory import MemoryReading, ProcessMemory, file_bytes
from agent.server.models.model_slot import Lease, Loading
from agent.server.models.served_model import ServedModel
from agent.server.observing.observers import QueueObserver
from agent.session import Session, SessionOptions
from agent.tracing.scope import TraceScope
from manifests.schema import ModelManifest


class OpenModel(Protocol):
    """Loads a model."""

    def __call__(
        self, manifest: ModelManifest, options: SessionOptions, trace: TraceScope | None = None
    ) -> Session:
        """Returns the open model; see ``agent.session.open_session``."""
        ...


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """How an agent serves the models that its clients share.

    Attributes:
        batching: How requests are put together.
        session: What models are opened with that are asked for by name alone.
        memory_limit_bytes: The most memory that models take together on a device; None for no limit.
        predict_timeout_s: How long a prediction may take, in seconds; what waits for one that takes longer is
            refused. None for any time.
    """

    batching: BatchingOptions = field(default_factory=BatchingOptions)
    session: SessionOptions = field(default_factory=SessionOptions)
    memory_limit_bytes: int | None = None
    predict_timeout_s: float | None = None

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


class ServedModels:
    """Loads, lends and unloads models. Thread-safe.

    A model that several ask for with the same options is loaded once, and its requests share a queue.

    Args:
        registry: The frameworks.
        open_model: Loads one.
        options: Batching, the default options of models, and the limit of memory.
        limit: The most models that are loaded at once.
        idle_s: How long a model may be unused, in seconds, before it is unloaded, unless it is to stay.
        memory: Tells what the process takes.
        clock: The clock of deadlines, in nanoseconds.
        observer: Is told how long requests waited.
    """

    def __init__(
        self,
        registry: Registry,
        open_model: OpenModel,
        options: ServingOptions,
        *,
        limit: int = 16,
        idle_s: float = 600.0,
        memory: MemoryReading | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        observer: QueueObserver | None = None,
    ) -> None:
        self._observer = observer
        self.options = options
        self.clock = clock
        self._registry = registry
        self._open_model = open_model
        self._loaded = LoadedModels(
            limit, idle_s, options.memory_limit_bytes, memory or ProcessMemory(), lambda: clock() / 1e9
        )

    def __len__(self) -> int:
        """The number of models that are loaded, or being loaded, or not yet freed."""
        return len(self._loaded)

    @property
    def loaded(self) -> tuple[ServedModel, ...]:
        """Every model that is loaded, whatever it was opened with."""
        return tuple(self._loaded.models.values())

    def model_of(self, manifest: ModelManifest, options: SessionOptions | None = None) -> ServedModel | None:
        """Returns a model if it is loaded."""
        return self._loaded.models.get(_key(manifest, options or self.options.session))

    def state_of(self, manifest: ModelManifest, options: SessionOptions | None = None) -> ModelState:
        """Returns whether a model is loaded."""
        key = _key(manifest, options or self.options.session)
        if key in self._loaded.models:
            return ModelState.LOADED
        return ModelState.LOADING if self._loaded.is_loading(key) else ModelState.UNLOADED

    def unload_of(self, manifest: ModelManifest, options: SessionOptions | None = None) -> bool:
        """Unloads a model; one in use is freed by the last that leaves it.

        Returns:
            Whether it was loaded.
        """
        return self._loaded.unload(_key(manifest, options or self.options.session))

    def lease(
        self,
        manifest: ModelManifest,
        options: SessionOptions | None = None,
        *,
        shared: bool = True,
        keep: bool = False,
        trace: TraceScope | None = None,
    ) -> Lease:
        """Lends a model until it is released, and loads it if it is not.

        Args:
            manifest: The model.
            options: What it is opened with; None means those of models that are asked for by name alone.
            shared: Whether others may use it, too; one of the caller's own is unloaded when it is released.
            keep: Whether it is to stay loaded although nobody uses it for long.
            trace: Where the span of the loading goes, if it is loaded now.

        Raises:
            MemoryLimitError, SessionLimitError: There is no room for it beside the models in use.
            InferscopeError: It cannot be loaded; see ``agent.session.open_session``.
        """
        chosen = options or self.options.session
        key = _key(manifest, chosen) if shared else None
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

    def lease_loaded(self, manifest: ModelManifest, options: SessionOptions) -> Lease | None:
        """Lends a model that several may use, if it is loaded."""
        return self._loaded.lease_loaded(_key(manifest, options))

    def close_idle(self) -> int:
        """Unloads the models that nobody has used for too long, and returns their number."""
        return self._loaded.close_idle()

    def close(self) -> None:
        """Loads nothing any more, and unloads every model, those in use when the last one leaves them."""
        self._loaded.close()

    def wait_for_none(self, timeout_s: float) -> bool:
        """Waits until no model is loaded; False if some still are after that time."""
        return self._loaded.wait_for_none(timeout_s)


def _key(manifest: ModelManifest, options: SessionOptions) -> tuple[object, ...]:
    """What two have in common that share a loaded model."""
    framework = manifest.framework
    name = manifest.name.casefold()
    return (name, manifest.version, framework.name.casefold(), framework.version, options)
