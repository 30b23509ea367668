"""One answer from those of several workers, for each method that all of them run."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from google.protobuf.message import Message

CHANGING = {
    "inference.GRPCInferenceService/RepositoryModelLoad",
    "inference.GRPCInferenceService/RepositoryModelUnload",
    "inference.GRPCInferenceService/SystemSharedMemoryRegister",
    "inference.GRPCInferenceService/SystemSharedMemoryUnregister",
}
"""The methods that change all workers."""
JOINED = CHANGING | {
    "inference.GRPCInferenceService/ModelStatistics",
    "inferometer.v1.PredictService/Reset",
    "inferometer.v1.RegistryService/Describe",
    "inferometer.v1.RegistryService/Status",
}
"""The methods that all workers run."""
_SUMS = {"open_sessions", "closed_sessions", "resident_memory_bytes", "cpu_ns"}
_SUMS |= {"inference_count", "execution_count", "count", "ns"}
_KEYS = {"model_stats": attrgetter("name", "version"), "batch_stats": attrgetter("batch_size")}


def join(found: Any, other: Any) -> Any:
    """Adds an answer to that of another worker, and returns it.

    Counts are sums, ``last_inference`` is the latest, and ``health`` is SERVING only if both are. Statistics
    are added by model and by size of batch. What all workers tell alike is that of the first.
    """
    for field, value in other.ListFields():
        name, ours = field.name, getattr(found, field.name)
        if name in _SUMS:
            setattr(found, name, ours + value)
        elif name == "last_inference":
            found.last_inference = max(ours, value)
        elif name == "health" and ours == "SERVING":
            found.health = value
        elif name in {"models", "troubles"}:
            ours.extend(value)
        elif key := _KEYS.get(name):
            rows = {key(row): row for row in ours}
            for row in value:
                if key(row) in rows:
                    join(rows[key(row)], row)
                else:
                    ours.append(row)
            ours.sort(key=key)
        elif isinstance(value, Message):
            join(ours, value)
    return found
