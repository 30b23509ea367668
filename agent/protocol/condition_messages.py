"""Conversion of the counters of a host's conditions to and from messages."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from google.protobuf.message import Message

from inferometer.agent.hardware.conditions import ConditionCounters, GpuCounters, ProcessorTimes
from inferometer.protos.inferometer.v1 import predict_pb2

_NESTED = ("processors", "gpu", "heat_throttles")


def conditions_response(counters: ConditionCounters) -> predict_pb2.ConditionsResponse:
    """Returns the message of counters; what is None is not set."""
    message = predict_pb2.ConditionsResponse(heat_throttles=counters.heat_throttles)
    _write(message, counters)
    for name in ("processors", "gpu"):
        if (nested := getattr(counters, name)) is not None:
            getattr(message, name).SetInParent()  # also where each of its numbers is 0 or not known
            _write(getattr(message, name), nested)
    return message


def read_conditions(message: predict_pb2.ConditionsResponse) -> ConditionCounters:
    """Returns the counters of a message."""
    counters = ConditionCounters(**_read(message, ConditionCounters))
    return replace(
        counters,
        processors=ProcessorTimes(**_read(message.processors, ProcessorTimes))
        if message.HasField("processors")
        else None,
        heat_throttles=tuple(message.heat_throttles),
        gpu=GpuCounters(**_read(message.gpu, GpuCounters)) if message.HasField("gpu") else None,
    )


def _write(message: Message, counters: object) -> None:
    """Sets the plain fields, whose names are those of the message."""
    for name in _plain(type(counters)):
        if (value := getattr(counters, name)) is not None:
            setattr(message, name, value)


def _read(message: Message, kind: type) -> dict[str, Any]:
    """The plain fields that are set; those that cannot be unset are 0 or empty."""
    optional = {field.name for field in message.DESCRIPTOR.fields if field.has_presence}
    return {
        name: getattr(message, name)
        for name in _plain(kind)
        if name not in optional or message.HasField(name)
    }


def _plain(kind: Any) -> list[str]:
    return [field.name for field in fields(kind) if field.name not in _NESTED]
