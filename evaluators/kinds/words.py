"""The words of commands that measure again, as far as kinds share them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferometer.agent.hardware.allocator import SETTING, Allocator
from inferometer.agent.hardware.device import DeviceKind
from inferometer.agent.inference.predictor import Precision, Weights
from inferometer.agent.inference.results import LOCAL_AGENT, SystemDescription
from inferometer.evaluators.evaluation import Evaluation

SYNTHETIC = "synthetic"
_LONGEST_LIST = 1000
"""How many characters of ids are written into the command."""


def words_of(name: str, value: object, default: object = None) -> list[str]:
    """Returns the option, where it differs from its default."""
    if value is None or value == default:
        return []
    return [f"--{name}={value:g}" if isinstance(value, float) else f"--{name}={value}"]


def system_words(evaluation: Evaluation) -> Iterator[str]:
    """Yields the options of the model and of what runs it."""
    system = evaluation.system
    manifest = system.manifest
    yield f"--model_name={manifest.name}"
    if system.agent == LOCAL_AGENT or "://" not in system.agent:
        yield f"--model_version={manifest.version}"
        yield f"--framework_name={manifest.framework.name}"
    if system.weights is Weights.RANDOM:
        yield "--weights=random"
    if system.precision not in {None, Precision.FLOAT32}:
        yield from words_of("dtype", system.precision.value)
    if system.agent == LOCAL_AGENT:
        yield from allocator_words(system)
    if system.cudnn_benchmark is not None:
        yield f"--cudnn_benchmark={str(system.cudnn_benchmark).lower()}"
    if system.device.kind is DeviceKind.GPU:
        yield "--gpu"
        yield from words_of("gpu_device_id", system.device.index, 0)
    elif system.device.kind is DeviceKind.CPU:
        yield from words_of("threads", system.threads)
    if system.agent != LOCAL_AGENT:
        yield f"--agent={system.agent}"


def dataset_words(evaluation: Evaluation) -> Iterator[str]:
    """Yields the options of the inputs."""
    dataset = evaluation.dataset
    if dataset.category == SYNTHETIC:
        yield "--synthetic"
    elif dataset.version is not None:
        yield f"--dataset_name={dataset.name}"
    else:
        yield f"--dataset_path={dataset.name}"
    if dataset.sample_ids is not None:
        yield f"--sample_ids={','.join(dataset.sample_ids) if are_short(dataset.sample_ids) else 'FILE'}"


def allocator_words(system: SystemDescription) -> Iterator[str]:
    """Yields the option of a policy of the memory allocator that is not the default."""
    if system.environment.settings.get(SETTING) == Allocator.KEEP.value:
        yield f"--allocator={Allocator.KEEP.value}"


def are_short(ids: Sequence[str]) -> bool:
    """Returns whether a list on the command line can name these samples."""
    listable = all(each == each.strip() and not set(each) & set(",\n\r") for each in ids)
    return listable and sum(map(len, ids)) <= _LONGEST_LIST
