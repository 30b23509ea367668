"""The device that a model runs on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class DeviceKind(str, Enum):
    """The kind of a device; ``REMOTE`` is a server's device that is not known."""

    CPU = "cpu"
    GPU = "gpu"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Device:
    """The CPU, the GPU number ``index`` as the framework counts them, or a server's device."""

    kind: DeviceKind = DeviceKind.CPU
    index: int = 0

    @property
    def is_gpu(self) -> bool:
        """Whether this is a GPU."""
        return self.kind is DeviceKind.GPU

    def __str__(self) -> str:
        return f"gpu:{self.index}" if self.is_gpu else self.kind.value


CPU = Device()
