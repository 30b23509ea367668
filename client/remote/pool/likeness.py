"""Whether several agents measure the same, and what is said of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from agent.description import SystemDescription
from agent.environment import Environment, Gpu
from manifests.errors import ConfigurationError

_SAME: Mapping[str, Callable[[SystemDescription], object]] = {
    "model": lambda d: f"{d.manifest.name} {d.manifest.version}",
    "framework": lambda d: f"{d.manifest.framework.name} {d.framework_version}",
    "kind of device": lambda d: d.device.kind.value,
    "weights": lambda d: d.weights.value if d.seed is None else f"{d.weights.value} of seed {d.seed}",
    "files of the model": lambda d: dict(d.checksums),
    "manifest of the model": lambda d: d.manifest.model_dump(),
}
"""What has to be the same; the last two are too long to be shown."""
_NOT_SHOWN = ("files of the model", "manifest of the model")
_MACHINE: Mapping[str, Callable[[SystemDescription], str]] = {
    "processor": lambda d: d.environment.cpu_model,
    "GPU": lambda d: ", ".join(gpu.name for gpu in d.environment.gpus) or "none",
    "threads": lambda d: str(d.threads),
}


def check_same(descriptions: Sequence[SystemDescription]) -> None:
    """Refuses agents whose answers are not those of one system.

    Raises:
        ConfigurationError: Two differ; the message says in what.
    """
    first = descriptions[0]
    for other in descriptions[1:]:
        for name, of in _SAME.items():
            ours, theirs = of(first), of(other)
            if ours != theirs:
                shown = "" if name in _NOT_SHOWN else f": {ours} and {theirs}"
                raise ConfigurationError(
                    f"agents {first.agent} and {other.agent} differ in the {name}{shown}; "
                    "only agents with the same one can share an evaluation"
                )


def machine_differences(descriptions: Sequence[SystemDescription]) -> str:
    """Says in what the machines differ that latency depends on; empty where they do not."""
    found = {name: dict.fromkeys(map(of, descriptions)) for name, of in _MACHINE.items()}
    return "; ".join(f"{name}: {' and '.join(values)}" for name, values in found.items() if len(values) > 1)


def combined(descriptions: Sequence[SystemDescription]) -> SystemDescription:
    """Returns what several agents that ran one evaluation are together.

    The names of agents, machines and processors are joined with commas; the GPUs are those of all; numbers
    are the first one's, and ``threads`` is None where they differ.
    """
    first = descriptions[0]
    if len(descriptions) == 1:
        return first
    threads = {d.threads for d in descriptions}
    return replace(
        first,
        agent=_joined(d.agent for d in descriptions),
        threads=first.threads if len(threads) == 1 else None,
        environment=_combined_environment([d.environment for d in descriptions]),
    )


def _combined_environment(machines: Sequence[Environment]) -> Environment:
    gpus: dict[str, Gpu] = {gpu.uuid: gpu for machine in machines for gpu in machine.gpus}
    return replace(
        machines[0],
        hostname=_joined(m.hostname for m in machines),
        architecture=_joined(m.architecture for m in machines),
        cpu_model=_joined(m.cpu_model for m in machines),
        gpus=tuple(gpus.values()),
    )


def _joined(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))
