"""One answer from those of several workers, for each method that all of them run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from operator import attrgetter
from typing import Any

from google.protobuf.message import Message

from inferometer.protos.inference.v2 import grpc_service_pb2 as v2
from inferometer.protos.inferometer.v1 import registry_pb2

CHANGING = {
    "inference.GRPCInferenceService/RepositoryModelLoad",
    "inference.GRPCInferenceService/RepositoryModelUnload",
    "inference.GRPCInferenceService/SystemSharedMemoryRegister",
    "inference.GRPCInferenceService/SystemSharedMemoryUnregister",
}
"""The methods that change all workers."""
STATUS = "inferometer.v1.RegistryService/Status"
JOINED = CHANGING | {
    "inference.GRPCInferenceService/ModelStatistics",
    "inferometer.v1.PredictService/Reset",
    "inferometer.v1.RegistryService/Describe",
    STATUS,
}
"""The methods that all workers run."""
COUNTING: Mapping[str, Any] = {
    "inference.GRPCInferenceService/ModelStatistics": v2.ModelStatisticsResponse,
    STATUS: registry_pb2.StatusResponse,
}
"""The answers with counts, which must not fall when a worker dies, by method."""
Counts = Mapping[tuple[str, ...], Any]
"""Messages with counts; a key begins with the model's name in lower case, or with "" if it is of none."""
_SUMS = {"open_sessions", "closed_sessions", "resident_memory_bytes", "cpu_ns"}
_SUMS |= {"inference_count", "execution_count", "count", "ns", "predicted_inputs"}
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


def counts_of(answer: Any) -> Counts:
    """Returns the counts in an answer of ``COUNTING``, for ``add_counts``."""
    return {key: part if key[0] else type(part)(cpu_ns=part.cpu_ns) for key, part in _counting(answer)}


def add_counts(parts: Iterable[Counts]) -> Counts:
    """Returns the sums of counts with the same key, as messages of their own."""
    found: dict[tuple[str, ...], Any] = {}
    for key, part in (each for counts in parts for each in counts.items()):
        found[key] = join(deepcopy(part), found[key]) if key in found else deepcopy(part)
    return found


def count_in(answers: Iterable[Any], counts: Counts) -> None:
    """Adds the counts of dead workers to the answers of others that tell of the same models."""
    rest = dict(counts)
    for key, part in (each for answer in answers for each in _counting(answer)):
        if key in rest:
            join(part, rest.pop(key))


def without_model(counts: Counts, name: str) -> Counts:
    """Returns the counts without those of a model; its name may include the framework, as that in a key."""
    names = name, name.partition("@")[0]
    return {k: n for k, n in counts.items() if k[0] not in names and not k[0].startswith(f"{name}@")}


def evicted(known: Iterable[Counts], answers: Iterable[Any]) -> set[str]:
    """Returns the names of models in counts of workers whose answers of ``STATUS`` no longer have them."""
    told = (key for answer in answers for key, _ in _counting(answer))
    return _names(key for counts in known for key in counts) - _names(told)


def _names(keys: Iterable[tuple[str, ...]]) -> set[str]:
    """Returns the names of models in keys, with and without their frameworks."""
    return {name for key in keys for name in (key[0], key[0].partition("@")[0])}


def _counting(answer: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the messages in an answer that have counts, each with its key."""
    if isinstance(answer, v2.ModelStatisticsResponse):
        yield from (((row.name.strip().casefold(), row.version), row) for row in answer.model_stats)
        return
    yield ("",), answer
    for model in answer.models:
        yield (f"{model.name}@{model.framework_name}".casefold(), model.version, model.device), model
