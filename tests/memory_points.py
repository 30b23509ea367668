"""A measurement of memory, for tests of its figures, its documents and its reports."""

from __future__ import annotations

from typing import Any

from inferometer.evaluators.kinds.memory.measurement import MIB, MemoryMeasurement


def reading(resident: int, peak: int, data: int, anonymous: int = 0) -> dict[str, int]:
    """A reading, from MiB."""
    mib = {"VmRSS": resident, "VmHWM": peak, "VmData": data, "RssAnon": anonymous}
    return {name: value * MIB for name, value in {**mib, "RssFile": resident - anonymous}.items()}


def point(size: int, data: int, *, limited: bool = False) -> Any:
    """A process that predicted: resident are 10 MiB of Python, 20 of framework, 30 of model, 40 of batch."""
    return {
        "batch_size": size,
        "sequence_length": 0,
        "limited": limited,
        "failure": "",
        "readings": {
            "baseline": reading(10, 10, 50),
            "framework": reading(30, 31, 90),
            "model": reading(60, 75, 200),
            "batch": reading(100, 100, data, 70),
        },
    }


def gpu_point(size: int, process: int | None = None) -> Any:
    """A process that predicted on a GPU, of which others had 50 MiB and it ``process``, if that is told."""
    found = point(size, 9000)
    model = {"Allocated": 100, "Reserved": 120, "AllocatedPeak": 110, "ReservedPeak": 120, "Used": 600}
    batch = {
        "Allocated": 100,
        "Reserved": 260,
        "AllocatedPeak": 100 + 10 * size,
        "ReservedPeak": 252 + 12 * size,
        "Used": 810,
    }
    told = {} if process is None else {"Process": process}
    for stage, mib in {"baseline": {"Used": 50}, "model": model, "batch": {**batch, **told}}.items():
        found["readings"][stage] |= {f"Device{name}": value * MIB for name, value in mib.items()}
    return found


MEASURED = MemoryMeasurement(
    points=[
        point(4, 240),
        point(8, 280),
        point(20, 398, limited=True),
        {
            "batch_size": 21,
            "sequence_length": 0,
            "limited": True,
            "failure": "the process ended by SIGKILL",
            "readings": {"baseline": reading(10, 10, 50)},
        },
    ],
    limit_bytes=400 * MIB,
    elapsed_ns=5_000_000_000,
    options={"memory_limit_mib": 400, "batch_sizes": (4, 8)},
)
