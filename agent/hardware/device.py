"""The device on which a model runs: the CPU, a GPU, or several GPUs that its instances take in turn."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum

from inferometer.manifests.errors import ConfigurationError, printable


class DeviceKind(str, Enum):
    """The kind of a device; ``REMOTE`` is a server's device of unknown kind."""

    CPU = "cpu"
    GPU = "gpu"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Device:
    """The CPU, the GPU that has this ``index`` in the framework, or a server's device.

    ``others`` are the indices of further GPUs: the instances of a model take all of them in turn.
    """

    kind: DeviceKind = DeviceKind.CPU
    index: int = 0
    others: tuple[int, ...] = ()

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.kind is DeviceKind.GPU

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of all GPUs, in their order; one of the CPU has no meaning."""
        return self.index, *self.others

    def of(self, instance: int) -> Device:
        """Returns the one device of an instance of a model; the first instance is 0."""
        return replace(self, index=self.indices[instance % len(self.indices)], others=())

    def counts(self, instances: int) -> Counter[Device]:
        """Returns the devices of so many instances, with the number of instances on each."""
        return Counter(map(self.of, range(instances)))

    def first(self, instances: int) -> Device:
        """Returns the device without the GPUs that so many instances do not take."""
        return replace(self, others=self.others[: instances - 1])

    def check_instances(self, instances: int) -> None:
        """Raises ConfigurationError if there are fewer instances than GPUs."""
        if instances < len(self.indices):
            raise ConfigurationError(f"{self}: each GPU needs an instance, but instances is {instances}")

    def __str__(self) -> str:
        return f"gpu:{','.join(map(str, self.indices))}" if self.is_gpu else self.kind.value

    @classmethod
    def gpus(cls, indices: str) -> Device:
        """Returns the GPUs with indices such as ``0,1`` or ``0,0,1``; raises ConfigurationError for other."""
        if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", indices):
            raise ConfigurationError(f'gpus is "{printable(indices)}"; give indices of GPUs, such as 0,1')
        index, *others = map(int, indices.split(","))
        return cls(DeviceKind.GPU, index, tuple(others))

    @classmethod
    def named(cls, name: str) -> Device:
        """Returns the device that MXNet or PyTorch calls ``cpu``, ``gpu``, ``gpu(1)`` or ``cuda:1``.

        Raises:
            ConfigurationError: There is no such name.
        """
        found = re.fullmatch(r"(cpu|gpu|cuda)(?:[:(](\d{1,9})\)?)?", name.strip().lower())
        if found is None:
            raise ConfigurationError(f'unknown ctx "{name}"; give cpu, gpu, or one GPU, such as gpu(1)')
        return CPU if found[1] == "cpu" else cls(DeviceKind.GPU, int(found[2] or 0))


CPU = Device()
