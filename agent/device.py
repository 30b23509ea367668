"""The device that a model runs on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class DeviceKind(str, Enum):
    """What kind of device."""

    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Device:
    """The CPU, or the GPU number ``index`` as the framework counts them."""

    kind: DeviceKind = DeviceKind.CPU
    index: int = 0

    @property
    def is_gpu(self) -> bool:
        """Whether this is a GPU."""
        return self.kind is DeviceKind.GPU

    def __str__(self) -> str:
        return f"gpu:{self.index}" if self.is_gpu else "cpu"


CPU = Device()
