"""The models that an agent serves, each loaded once for all clients with the same options.

It also selects the versions that Open Inference Protocol clients see, like Triton's ``version_policy``, and
manages the process's memory: its use on a device, and the return of unused memory to the system.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import psutil
from packaging.utils import canonicalize_version
from packaging.version import InvalidVersion, Version

from inferometer.agent.artifacts.files import ArtifactCache
from inferometer.agent.artifacts.locations import model_files
from inferometer.agent.generation.opening import open_engine
from inferometer.agent.hardware.conditions import read_gpu_memory
from inferometer.agent.hardware.environment import CPU, Device, Precision, Weights, default_threads
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import Session, SessionOptions
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.loaded_models import Borrowers, LoadedModels, Loading
from inferometer.agent.serving.observers import ModelStatistics, QueueObserver
from inferometer.agent.serving.served_model import Lease, LoadedModel, ServedEngine, ServedModel
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.manifests.errors import ConfigurationError, one_line
from inferometer.manifests.schema import ModelManifest


class VersionChoice(str, Enum):
    """The kinds of version policies."""

    ALL = "all"
    LATEST = "latest"
    SPECIFIC = "specific"


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Serves every version of a model, the ``latest`` ones, or ``specific`` ones.

    Attributes:
        choice: The kind.
        latest: How many of the highest versions ``LATEST`` serves.
        specific: The versions that ``SPECIFIC`` serves; ``1`` and ``1.0`` are the same.
    """

    choice: VersionChoice = VersionChoice.ALL
    latest: int = 1
    specific: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> VersionPolicy:
        """Parses ``all``, ``latest:N`` or ``specific:V,V``; raises ConfigurationError for other text."""
        kind, _, rest = text.strip().partition(":")
        if kind == VersionChoice.ALL and text.strip() == kind:
            return cls()
        if kind == VersionChoice.LATEST and re.fullmatch(r"0*[1-9][0-9]{0,8}", rest):
            return cls(VersionChoice.LATEST, latest=int(rest))
        versions = tuple(part.strip() for part in rest.split(","))
        if kind == VersionChoice.SPECIFIC and all(map(_is_version, versions)):
            return cls(VersionChoice.SPECIFIC, specific=versions)
        raise ConfigurationError(
            f'version_policy: found "{one_line(text, 60)}"; allowed: all, latest:N with N from 1 on, or '
            "specific: and comma-separated versions, such as specific:1,3; for one model NAME=POLICY"
        )

    def __str__(self) -> str:
        of = {VersionChoice.LATEST: f":{self.latest}", VersionChoice.SPECIFIC: f":{','.join(self.specific)}"}
        return f"{self.choice.value}{of.get(self.choice, '')}"

    def served(self, versions: Sequence[str]) -> tuple[str, ...]:
        """Returns those of a model's versions that are served, in the given order, which is highest first."""
        match self.choice:
            case VersionChoice.LATEST:
                return tuple(versions[: self.latest])
            case VersionChoice.SPECIFIC:
                wanted = set(map(canonicalize_version, self.specific))
                return tuple(v for v in versions if canonicalize_version(v) in wanted)
        return tuple(versions)


SERVE_ALL = VersionPolicy()


@dataclass(frozen=True, slots=True)
class VersionPolicies:
    """The policy of each model.

    Attributes:
        default: The policy of models without their own.
        by_model: The policies of individual models by name.
    """

    default: VersionPolicy = SERVE_ALL
    by_model: Mapping[str, VersionPolicy] = field(default_factory=dict)

    @classmethod
    def parse(cls, texts: Iterable[str]) -> VersionPolicies:
        """Parses ``POLICY`` for every model and ``NAME=POLICY`` for one; see ``VersionPolicy.parse``.

        Raises ConfigurationError for other text, and if two policies are for the same model.
        """
        found: dict[str, VersionPolicy] = {}
        for text in texts:
            name, mark, policy = text.rpartition("=")
            name = name.strip()
            if mark and not name:
                raise ConfigurationError(
                    f'version_policy: found "{one_line(text, 60)}" without a model; give NAME=POLICY'
                )
            if name.casefold() in map(str.casefold, found):
                what = f"model {one_line(name, 60)} has" if name else "all models have"
                raise ConfigurationError(f"version_policy: {what} two policies; give one")
            found[name] = VersionPolicy.parse(policy)
        return cls(found.pop("", SERVE_ALL), found)

    def of(self, model: str) -> VersionPolicy:
        """Returns the policy of a model; names are case-insensitive."""
        wanted = model.strip().casefold()
        return next((p for name, p in self.by_model.items() if name.casefold() == wanted), self.default)


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except (InvalidVersion, ValueError):  # ValueError: a number too long for int
        return False
    return True


def used_bytes(device: Device) -> int | None:
    """Returns the resident sets of this process and its child processes for a CPU, or the memory on a GPU.

    For a GPU, that is the memory that NVML reports for these processes or, if NVML knows none of them, as in
    a container, the memory in use on the whole GPU. If GPUs differ, see ``GpuReader`` on their order. Returns
    None without a driver.
    """
    if device.is_gpu:
        found = read_gpu_memory(device.index)
        return found.get("DeviceProcess", found.get("DeviceUsed"))
    me = psutil.Process()
    return sum(map(_resident_bytes, (me, *me.children(recursive=True))))


def _resident_bytes(process: psutil.Process) -> int:
    with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
        return int(process.memory_info().rss)
    return 0


def file_bytes(manifest: ModelManifest, weights: Weights) -> int:
    """Returns the size of a model's graph and weights, counting only local files outside the cache."""
    files = model_files(manifest, weights=weights is Weights.PRETRAINED)
    found = (file.local() for file in files.values())
    return sum(path.stat().st_size for path in found if path is not None)


def release_free_memory() -> None:
    """Returns unused memory of the C library's allocator to the system, if the library is glibc.

    Calls in many threads leave it spread over the allocator's arenas, several hundred MiB after a burst of
    large tensors, and glibc itself returns only the end of each arena.
    """
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


_IDLE_SHARE = 0.02
"""The share of one processor below which a process is considered idle."""
_WORKED_S = 0.5
"""The processor time after which there may be memory to release."""


class IdleRelease:
    """Releases free memory once a busy process has become idle, so that no request waits for it.

    ``clock`` is monotonic, and ``processor_clock`` that of the process's processor time; both in seconds.
    """

    def __init__(
        self,
        release: Callable[[], None] = release_free_memory,
        clock: Callable[[], float] = time.monotonic,
        processor_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._release = release
        self._clock = clock
        self._processor_clock = processor_clock
        self._checked_s, self._used_s = clock(), processor_clock()
        self._released_s = self._used_s

    def check(self) -> None:
        """Releases the memory if the process was busy and has been idle since the last check."""
        now_s, used_s = self._clock(), self._processor_clock()
        idle = used_s - self._used_s < _IDLE_SHARE * (now_s - self._checked_s)
        if idle and used_s - self._released_s > _WORKED_S:
            self._release()
            used_s = self._released_s = self._processor_clock()
        self._checked_s, self._used_s = now_s, used_s


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How one model is served.

    Attributes:
        batching: Its instances, and how its requests are batched.
        threads: The number of threads per operator for clients that specify none; None means the default.
        divided_by: The number of processes that divide the cores, and among which the instances of each
            divide their share; None if they do not, because the number of threads is given.
        device: The device of its instances, or their GPUs, for clients that name none.
    """

    batching: BatchingOptions
    threads: int | None = None
    divided_by: int | None = None
    device: Device = CPU

    @property
    def shares(self) -> bool:
        """Whether several clients use one queue, even without a memory limit."""
        return self.batching.max_batch_size > 1 or self.batching.instances > 1

    def with_instances(self, instances: int) -> ModelSettings:
        """Returns the settings with another number of instances, which divide the cores."""
        threads, batching = self.threads, replace(self.batching, instances=instances)
        if self.divided_by is not None:
            share = self.divided_by * instances
            threads = default_threads(0, share) if share > 1 or batching.pin else None
        return replace(self, batching=batching, threads=threads)


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """How an agent serves the models that its clients share.

    Attributes:
        batching: How requests are batched.
        session: The options of models that are requested by name alone; its ``threads`` also apply to
            sessions whose client does not specify a number.
        memory_limit_bytes: The maximum memory of all models on a device; None sets no limit.
        predict_timeout_s: How long a prediction may take, in seconds; requests that wait for a longer one are
            refused. None sets no limit.
        versions: The versions of models that clients of the Open Inference Protocol see.
        divided_by: As in ``ModelSettings``.
        by_model: The settings of models that are not served like the others, by name.
    """

    batching: BatchingOptions = field(default_factory=BatchingOptions)
    session: SessionOptions = field(default_factory=SessionOptions)
    memory_limit_bytes: int | None = None
    predict_timeout_s: float | None = None
    versions: VersionPolicies = field(default_factory=VersionPolicies)
    divided_by: int | None = None
    by_model: Mapping[str, ModelSettings] = field(default_factory=dict)

    @property
    def predict_timeout_ns(self) -> int | None:
        """``predict_timeout_s`` in nanoseconds."""
        return None if self.predict_timeout_s is None else int(self.predict_timeout_s * 1e9)

    def of(self, model: str) -> ModelSettings:
        """Returns the settings of a model; names are case-insensitive."""
        wanted = model.strip().casefold()
        own = (settings for name, settings in self.by_model.items() if name.casefold() == wanted)
        session = self.session
        return next(own, ModelSettings(self.batching, session.threads, self.divided_by, session.device))


class ModelState(str, Enum):
    """The loading state of a model."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"


class ModelKey:
    """The key of a loaded model, which its clients share: the model, its options and batching. Hashable.

    The hash is computed once, because the options have many parts.
    """

    __slots__ = ("_hash", "_parts")

    def __init__(self, manifest: ModelManifest, options: SessionOptions, batching: BatchingOptions) -> None:
        framework = manifest.framework
        if options.precision is None and not manifest.has_own_precision:  # which a client can also ask for
            options = replace(options, precision=Precision.FLOAT32)
        name = manifest.name.casefold()
        self._parts = (
            name,
            manifest.version,
            framework.name.casefold(),
            framework.version,
            options,
            batching,
        )
        self._hash = hash(self._parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelKey) and self._parts == other._parts

    def __hash__(self) -> int:
        return self._hash


class ServedModels(LoadedModels):
    """Loads, lends and unloads models. Thread-safe.

    A model that several clients request with the same options is loaded once, by ``open_model``, and its
    requests share a queue. At most ``limit`` models are loaded; one that has been idle for ``idle_s`` seconds
    is unloaded, unless it is kept. ``borrowers`` give up models that they do not use. ``cache`` downloads the
    files of language models.
    """

    def __init__(
        self,
        registry: Registry,
        open_model: Callable[[ModelManifest, SessionOptions, TraceScope | None], Session],
        options: ServingOptions,
        *,
        cache: ArtifactCache | None = None,
        limit: int = 16,
        idle_s: float = 600.0,
        observer: QueueObserver | None = None,
        borrowers: Borrowers | None = None,
    ) -> None:
        super().__init__(limit, idle_s, options.memory_limit_bytes, used_bytes, borrowers=borrowers)
        self._observer = observer
        self.options = options
        self.clock: Callable[[], int] = time.perf_counter_ns
        """The clock of deadlines, in nanoseconds."""
        self._settings: dict[tuple[str, str], ModelSettings] = {}
        self._registry = registry
        self._open_model, self._cache = open_model, cache

    @property
    def loaded(self) -> tuple[LoadedModel, ...]:
        """All loaded models, whatever options they were opened with."""
        return tuple(self.models.values())

    def alive_of(self, model: str) -> int:
        """Returns how many instances of a model are alive; if it is loaded several times, of the worst."""
        return min((each.alive for each in self.loaded if each.manifest.name == model), default=0)

    def settings_of(self, manifest: ModelManifest) -> ModelSettings:
        """Returns how a model is served: as a client has loaded it, or else as the options say."""
        return self._settings.get(_name_of(manifest)) or self.options.of(manifest.name)

    def serve_as(self, manifest: ModelManifest, settings: ModelSettings | None) -> None:
        """Sets how a model is served when it is opened next; None: as the options say."""
        self._settings.pop(_name_of(manifest), None)
        if settings is not None:
            self._settings[_name_of(manifest)] = settings

    def shares(self, manifest: ModelManifest) -> bool:
        """Returns whether clients that open the same model with the same options share one."""
        return self.options.memory_limit_bytes is not None or self.settings_of(manifest).shares

    def state_of(self, key: ModelKey) -> ModelState:
        """Returns whether a model is loaded."""
        if key in self.models:
            return ModelState.LOADED
        return ModelState.LOADING if self.is_loading(key) else ModelState.UNLOADED

    def lease_model(
        self,
        manifest: ModelManifest,
        options: SessionOptions,
        *,
        batching: BatchingOptions | None = None,
        shared: bool = True,
        keep: bool = False,
        trace: TraceScope | None = None,
        replaces: LoadedModel | None = None,
    ) -> Lease[Any]:
        """Lends a model until it is released; loads it if necessary, with a span in ``trace``.

        ``batching`` is by default that of ``settings_of``. A model that ``replaces`` another one continues
        its statistics. Unless ``shared``, the model belongs to the caller and is unloaded on release. With
        ``keep``, it stays loaded even if it is idle for long. A language model is a ``ServedEngine``.

        Raises:
            MemoryLimitError, SessionLimitError: The models in use leave no room for this one.
            InferometerError: The model cannot be loaded; see ``agent.inference.session.open_session``.
        """
        batching = batching or self.settings_of(manifest).batching
        key = ModelKey(manifest, options, batching) if shared else None
        if key is not None and (lease := self.lease_loaded(key, keep=keep)):
            return lease
        instances = 1 if manifest.generates else batching.instances
        statistics = replaces.statistics if replaces else ModelStatistics(time.time_ns)

        def load(on_closed: Callable[[], None]) -> LoadedModel:
            if manifest.generates:
                engine, description = open_engine(
                    manifest,
                    self._registry,
                    self._cache,
                    options.predictor,
                    max_batch_size=batching.max_batch_size,
                    max_waiting=batching.max_queue,
                    on_closed=on_closed,
                )
                return ServedEngine(engine, description, replace(batching, instances=1), statistics)
            chosen = options.pinned(batching.instances) if batching.pin else options
            session = self._open_model(manifest, chosen, trace)
            return ServedModel(
                session,
                batching,
                clock=self.clock,
                on_closed=on_closed,
                predict_timeout_ns=self.options.predict_timeout_ns,
                observer=self._observer,
                open_instance=session.open_another,
                statistics=statistics,
            )

        if self.options.memory_limit_bytes is not None:
            # what the framework itself takes is not the model's
            self._registry.find(manifest.framework.name).load()
        name = f"{manifest.name} {manifest.version}"
        size, counts = file_bytes(manifest, options.weights), options.device.counts(instances)
        loading = Loading(name, {device: count * size for device, count in counts.items()}, load)
        return self.lease(key, loading, keep=keep)


def _name_of(manifest: ModelManifest) -> tuple[str, str]:
    return manifest.name.casefold(), manifest.framework.name.casefold()
