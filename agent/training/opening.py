"""Opens the trainer of a model, as ``agent.inference.session`` opens its predictor."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES, Architectures
from inferometer.agent.artifacts.model_files import resolve_model
from inferometer.agent.hardware.environment import container_architecture, read_environment
from inferometer.agent.inference.postprocessing import with_labels
from inferometer.agent.inference.predictor import Weights
from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.inference.requirements import require_supported
from inferometer.agent.inference.results import SystemDescription
from inferometer.agent.preprocessing.preprocessor import preprocessor_of
from inferometer.agent.training.companion import CompanionsOf
from inferometer.agent.training.trainer import Trainer, TrainerOptions
from inferometer.manifests.errors import ArtifactError, ConfigurationError, FrameworkUnavailableError
from inferometer.manifests.schema import ModelManifest

if TYPE_CHECKING:
    from inferometer.agent.artifacts.cache import ArtifactCache


def open_trainer(
    manifest: ModelManifest,
    options: TrainerOptions,
    registry: Registry,
    *,
    architectures: Architectures = BUILTIN_ARCHITECTURES,
    cache: ArtifactCache | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> tuple[Trainer, SystemDescription]:
    """Builds a model on this process's devices, and meets the other ranks; the caller closes the trainer.

    Without a ``cache``, the weights of a model that is not to have random ones must be on this machine.

    Returns:
        The loaded trainer, and what it runs on: the first of the devices, and no threads that preprocess,
        which are the loader's.

    Raises:
        UnknownFrameworkError, FrameworkUnavailableError: The framework is unknown or not installed.
        ConfigurationError: The framework trains no models, or an option is not supported here.
        ArtifactError: The model is read from a file, or a file of it is missing or changed.
        ManifestError: The manifest requires something that is not supported, or other hardware.
        DeviceError: A device is not available.
        TrainingError: The other ranks cannot be reached.
    """
    trainer_type = check_trainer(manifest, options, registry)
    preprocessor = preprocessor_of(manifest.inputs[0].parameters)
    entry = registry.find(manifest.framework.name)
    random = options.predictor.weights is Weights.RANDOM
    manifest = with_labels(manifest, needed=False, cache=None if random else cache)
    artifacts = resolve_model(manifest, entry.name, architectures, cache, random=random)
    versions = {**registry.versions, **(artifacts.architecture.versions if artifacts.architecture else {})}
    trainer = trainer_type(manifest, artifacts, options, clock)
    try:
        trainer.load()
        description = SystemDescription(
            manifest=manifest,
            checksums=artifacts.checksums,
            framework_version=entry.installed_version or "",
            device=options.devices[0],
            threads=trainer.threads,
            preprocess_threads=0,
            overlap=False,
            environment=read_environment(versions, preprocessor.libraries, trainer.details()),
            weights=options.predictor.weights,
            seed=options.predictor.seed if random else None,
            precision=options.predictor.precision,
            cudnn_benchmark=options.predictor.cudnn_benchmark,
        )
    except BaseException:
        trainer.close()
        raise
    return trainer, description


def check_trainer(manifest: ModelManifest, options: TrainerOptions, registry: Registry) -> type[Trainer]:
    """Returns the trainer of a model, after all checks that need neither its files nor the data.

    Raises what ``open_trainer`` raises for the framework, the options, the devices and the manifest.
    """
    require_supported(manifest, container_architecture(platform.machine()))
    entry = registry.find(manifest.framework.name)
    trainer = _trainer_of(entry, registry)
    if manifest.model.architecture is None:
        raise ArtifactError(
            f"model {manifest.name} {manifest.version} for {entry.name} is read from a file; only a model "
            "that is built in code (architecture) can be trained"
        )
    trainer.check(manifest, options)
    return trainer


def find_companions(entry: FrameworkEntry, communication: str) -> CompanionsOf | None:
    """Returns the function that gives the companions of ranks; None for a framework without any.

    Args:
        entry: The framework.
        communication: How the ranks add up gradients, as in ``TrainerOptions``.

    Raises:
        FrameworkUnavailableError: The framework is not installed.
    """
    companions = entry.load_companions()
    if companions is None:
        return None
    if not callable(companions):
        raise FrameworkUnavailableError(f"framework {entry.name}: {entry.companions} is no function")
    return partial(companions, communication)


def _trainer_of(entry: FrameworkEntry, registry: Registry) -> type[Trainer]:
    if not entry.trainer:
        able = ", ".join(each.name for each in registry.entries if each.trainer)
        raise ConfigurationError(f"framework {entry.name} trains no models; allowed: {able or 'none'}")
    trainer = entry.load_trainer()
    if not (isinstance(trainer, type) and issubclass(trainer, Trainer)):
        raise FrameworkUnavailableError(f"framework {entry.name}: {entry.trainer} is no Trainer")
    return trainer
