"""One answer from those of several workers, for each method that all of them run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def _first(answers: Sequence[Any]) -> Any:
    return answers[0]


def _summed(*fields: str) -> Callable[[Sequence[Any]], Any]:
    """Adds the numbers and the lists in these fields of the answers; the rest is that of the first."""

    def add(answers: Sequence[Any]) -> Any:
        found = answers[0]
        for field, other in itertools.product(fields, answers[1:]):
            if isinstance(value := getattr(other, field), int):
                setattr(found, field, getattr(found, field) + value)
            else:
                getattr(found, field).extend(value)
        return found

    return add


def _status(answers: Sequence[Any]) -> Any:
    found = _summed("open_sessions", "resident_memory_bytes", "models", "troubles")(answers)
    found.health = next((each.health for each in answers if each.health != "SERVING"), found.health)
    return found


def _statistics(answers: Sequence[Any]) -> Any:
    """Adds the statistics of each model; ``last_inference`` is the latest."""
    models: dict[tuple[str, str], Any] = {}
    for model in itertools.chain.from_iterable(answer.model_stats for answer in answers):
        found = models.setdefault((model.name, model.version), model)
        if found is model:
            continue
        found.last_inference = max(found.last_inference, model.last_inference)
        _summed("inference_count", "execution_count")((found, model))
        _add_durations(found.inference_stats, model.inference_stats)
        batches = {each.batch_size: each for each in found.batch_stats}
        for each in model.batch_stats:
            if each.batch_size in batches:
                _add_durations(batches[each.batch_size], each)
            else:
                found.batch_stats.append(each)
        found.batch_stats.sort(key=lambda each: each.batch_size)
    return type(answers[0])(model_stats=models.values())


def _add_durations(found: Any, other: Any) -> None:
    for field, duration in other.ListFields():
        if field.message_type is not None:
            _summed("count", "ns")((getattr(found, field.name), duration))


JOINED: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "ModelStatistics": _statistics,
    "RepositoryModelLoad": _first,
    "RepositoryModelUnload": _first,
    "SystemSharedMemoryRegister": _first,
    "SystemSharedMemoryUnregister": _first,
    "Reset": _summed("closed_sessions"),
    "Describe": _summed("open_sessions"),
    "Status": _status,
}
"""The methods that all workers run, and what makes one answer of theirs."""
CHANGING = {name for name, join in JOINED.items() if join is _first}
"""Those that change the workers."""
