"""Converts between messages and the program's objects: options, results, and agent properties."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from google.protobuf.message import Message
from pydantic import ValidationError

from inferometer.agent.hardware.conditions import ConditionCounters, GpuCounters, ProcessorTimes
from inferometer.agent.hardware.environment import Device, DeviceKind, Environment, Gpu, Precision, Weights
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.inference.stages import SystemDescription
from inferometer.agent.preprocessing.inputs import (
    EncodedImage,
    Input,
    NamedTensors,
    Payload,
    Pixels,
    Tensor,
    Text,
    Url,
)
from inferometer.agent.protocol.tensors import read_named, read_tensor
from inferometer.agent.tracing.recorder import (
    COLUMNS,
    Attributes,
    AttributeValue,
    SpanChunk,
    SpanKind,
    SpanRole,
    TraceLevel,
)
from inferometer.manifests.errors import AgentError, ConfigurationError, InputError
from inferometer.manifests.inputs import AxisSizes
from inferometer.manifests.schema import ModelManifest
from inferometer.protos.inferometer.v1 import predict_pb2

_INT64 = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class TracePart:
    """The spans that a call has recorded since it sent the previous part.

    ``dropped`` counts the spans for which there was no room; ``notes`` describe missing data, one line each.
    ``resource`` describes the process that recorded the call's spans; one part of each call has it.
    """

    chunks: Sequence[SpanChunk] = ()
    dropped: int = 0
    notes: Sequence[str] = ()
    resource: Attributes = ()

    def __bool__(self) -> bool:
        """Returns whether the part has any content."""
        return bool(self.chunks or self.dropped or self.notes)


def trace_part_message(part: TracePart) -> predict_pb2.TracePart:
    """Returns the message for a part."""
    return predict_pb2.TracePart(
        spans=[
            predict_pb2.SpanChunk(
                kinds_json=json.dumps([_kind_object(kind) for kind in chunk.kinds]),
                columns=b"".join(getattr(chunk, name).astype(_INT64).tobytes() for name in COLUMNS),
            )
            for chunk in part.chunks
        ],
        dropped=part.dropped,
        notes=part.notes,
        resource_json=json.dumps(part.resource) if part.resource else "",
    )


def read_trace_part(message: predict_pb2.TracePart) -> TracePart:
    """Returns the part that a message contains; raises ValueError if its spans are not valid."""
    return TracePart(
        [_span_chunk(chunk) for chunk in message.spans],
        message.dropped,
        tuple(message.notes),
        _resource_attributes(message.resource_json) if message.resource_json else (),
    )


def _resource_attributes(text: str) -> Attributes:
    try:
        return tuple((str(name), _attribute(value)) for name, value in json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the resource cannot be read: {type(error).__name__}: {error}") from error


def _kind_object(kind: SpanKind) -> dict[str, object]:
    role = {} if kind.role is SpanRole.INTERNAL else {"role": kind.role.name}
    return {"name": kind.name, "level": kind.level.name, "attributes": kind.attributes, **role}


def _span_chunk(message: predict_pb2.SpanChunk) -> SpanChunk:
    try:
        kinds = tuple(
            SpanKind(
                str(kind["name"]),
                TraceLevel[kind["level"]],
                tuple((str(name), _attribute(value)) for name, value in kind["attributes"]),
                SpanRole[kind.get("role", SpanRole.INTERNAL.name)],
            )
            for kind in json.loads(message.kinds_json)
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the kinds of its spans cannot be read: {type(error).__name__}: {error}") from error
    values = np.frombuffer(message.columns, _INT64)  # raises ValueError for a truncated number
    if len(values) % len(COLUMNS):
        raise ValueError("the columns of its spans differ in length")
    columns = dict(zip(COLUMNS, values.astype(np.int64).reshape(len(COLUMNS), -1), strict=True))
    places = columns["kind"]
    if len(places) and not 0 <= places.min() <= places.max() < len(kinds):
        raise ValueError("a span is of no kind")
    return SpanChunk(kinds, *(columns[name] for name in COLUMNS))


def _attribute(value: object) -> AttributeValue:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"an attribute is {type(value).__name__}")


_NESTED_COUNTERS = ("processors", "gpu", "heat_throttles")


def conditions_response(counters: ConditionCounters) -> predict_pb2.ConditionsResponse:
    """Returns the message for counters; fields whose counter is None are not set."""
    message = predict_pb2.ConditionsResponse(heat_throttles=counters.heat_throttles)
    _write_counters(message, counters)
    for name in ("processors", "gpu"):
        if (nested := getattr(counters, name)) is not None:
            getattr(message, name).SetInParent()  # also where each of its numbers is 0 or not known
            _write_counters(getattr(message, name), nested)
    return message


def read_conditions(message: predict_pb2.ConditionsResponse) -> ConditionCounters:
    """Returns the counters in a message."""
    return ConditionCounters(
        **_read_counters(message, ConditionCounters),
        processors=ProcessorTimes(**_read_counters(message.processors, ProcessorTimes))
        if message.HasField("processors")
        else None,
        heat_throttles=tuple(message.heat_throttles),
        gpu=GpuCounters(**_read_counters(message.gpu, GpuCounters)) if message.HasField("gpu") else None,
    )


def _write_counters(message: Message, counters: object) -> None:
    """Sets the plain fields, whose names in the message are the same."""
    for name in _plain_counters(type(counters)):
        if (value := getattr(counters, name)) is not None:
            setattr(message, name, value)


def _read_counters(message: Message, kind: type) -> dict[str, Any]:
    """Returns the plain fields that are set; fields that cannot be unset are 0 or empty."""
    optional = {field.name for field in message.DESCRIPTOR.fields if field.has_presence}
    return {
        name: getattr(message, name)
        for name in _plain_counters(kind)
        if name not in optional or message.HasField(name)
    }


def _plain_counters(kind: Any) -> list[str]:
    return [field.name for field in fields(kind) if field.name not in _NESTED_COUNTERS]


_WEIGHTS = {weights: predict_pb2.Weights.Value(f"WEIGHTS_{weights.name}") for weights in Weights}
_WEIGHTS_BACK: dict[int, Weights] = {number: weights for weights, number in _WEIGHTS.items()}
_WEIGHTS_BACK[predict_pb2.WEIGHTS_UNSPECIFIED] = Weights.PRETRAINED
_PRECISIONS = {each: predict_pb2.Precision.Value(f"PRECISION_{each.name}") for each in Precision}
_PRECISIONS_BACK: dict[int, Precision | None] = {number: each for each, number in _PRECISIONS.items()}
_PRECISIONS_BACK[predict_pb2.PRECISION_UNSPECIFIED] = None


def read_inputs(messages: Iterable[predict_pb2.Input]) -> tuple[Input, ...]:
    """Returns the inputs in a request.

    Raises InputError if an input has no data, or if a tensor does not match its own description.
    """
    return tuple(Input(message.id, _read_payload(message)) for message in messages)


def _read_payload(message: predict_pb2.Input) -> Payload:
    what = f"input {message.id}"
    match message.WhichOneof("data"):
        case "encoded_image":
            return EncodedImage(message.encoded_image)
        case "url":
            return Url(message.url)
        case "tensor":
            return Tensor(read_tensor(message.tensor, what))
        case "pixels":
            array = read_tensor(message.pixels, what)
            if array.dtype != "uint8":
                raise InputError(f"{what}: pixels are uint8, not {array.dtype}")
            return Pixels(array)
        case "tensors":
            return NamedTensors(read_named(message.tensors.tensors, what))
        case "text":
            return Text(message.text.text, message.text.pair if message.text.HasField("pair") else None)
        case _:
            raise InputError(f"{what}: has no data; give encoded_image, url, pixels, tensor, tensors or text")


def read_options(request: predict_pb2.OpenRequest) -> SessionOptions:
    """Returns the options for the session to open; raises ConfigurationError if they are not valid."""
    return SessionOptions(
        device=read_device(request.device),
        threads=request.threads or None,
        preprocess_threads=request.preprocess_threads if request.HasField("preprocess_threads") else None,
        overlap=request.overlap if request.HasField("overlap") else None,
        feature_limit=request.feature_limit,
        weights=_read_weights(request.weights),
        seed=request.seed,
        precision=_read_precision(request.precision),
        cudnn_benchmark=request.cudnn_benchmark if request.HasField("cudnn_benchmark") else None,
    )


def open_request(
    model_name: str, model_version: str | None, framework_name: str | None, options: SessionOptions
) -> predict_pb2.OpenRequest:
    """Returns the request to open a model; None means any version or any framework."""
    return predict_pb2.OpenRequest(
        model_name=model_name,
        model_version=model_version or "",
        framework_name=framework_name or "",
        device=_device_message(options.device),
        threads=options.threads or 0,
        preprocess_threads=options.preprocess_threads,
        overlap=options.overlap,
        feature_limit=options.feature_limit,
        weights=_WEIGHTS[options.weights],
        seed=options.seed,
        precision=_PRECISIONS[options.precision] if options.precision else predict_pb2.PRECISION_UNSPECIFIED,
        cudnn_benchmark=options.cudnn_benchmark,
    )


def _read_weights(number: int) -> Weights:
    """Raises ConfigurationError for an unknown number; unspecified means pretrained weights."""
    if number not in _WEIGHTS_BACK:
        raise ConfigurationError(f"weights {number} are not known")
    return _WEIGHTS_BACK[number]


def _read_precision(number: int) -> Precision | None:
    """Raises ConfigurationError for an unknown number; unspecified means the model's own precision, None."""
    if number not in _PRECISIONS_BACK:
        raise ConfigurationError(f"precision {number} is not known")
    return _PRECISIONS_BACK[number]


def read_device(message: predict_pb2.Device) -> Device:
    """Returns a message's device, by default the CPU; raises ConfigurationError for an unknown kind."""
    if message.kind in {predict_pb2.DEVICE_KIND_UNSPECIFIED, predict_pb2.DEVICE_KIND_CPU}:
        return Device(DeviceKind.CPU)
    if message.kind == predict_pb2.DEVICE_KIND_GPU:
        return Device(DeviceKind.GPU, message.index, tuple(message.others))
    raise ConfigurationError(f"device kind {message.kind} is not known")


def _device_message(device: Device) -> predict_pb2.Device:
    kind = predict_pb2.DEVICE_KIND_GPU if device.is_gpu else predict_pb2.DEVICE_KIND_CPU
    return predict_pb2.Device(kind=kind, index=device.index, others=device.others)


def open_response(
    session_id: str, description: SystemDescription, trace: TracePart | None = None
) -> predict_pb2.OpenResponse:
    """Returns the response to a request that opened a session; ``trace`` contains its spans."""
    return predict_pb2.OpenResponse(
        session_id=session_id,
        manifest_json=description.manifest.model_dump_json(),
        checksums=description.checksums,
        framework_version=description.framework_version,
        device=_device_message(description.device),
        threads=description.threads or 0,
        preprocess_threads=description.preprocess_threads,
        overlap=description.overlap,
        environment_json=json.dumps(asdict(description.environment)),
        weights=_WEIGHTS[description.weights],
        seed=description.seed,
        trace=trace_part_message(trace) if trace else None,
        precision=(
            predict_pb2.PRECISION_OF_THE_FILE
            if description.precision is None
            else _PRECISIONS[description.precision]
        ),
        cudnn_benchmark=description.cudnn_benchmark,
        sizes=[
            predict_pb2.TensorSizes(input=each.name, axes=map(_axis_message, each.sizes))
            for each in description.manifest.tensors
            if each.sizes
        ],
    )


def _axis_message(sizes: AxisSizes | None) -> predict_pb2.AxisSizes:
    if sizes is None:
        return predict_pb2.AxisSizes()
    return predict_pb2.AxisSizes(least=sizes.least, most=sizes.most or 0, example=sizes.example or 0)


def _read_axis(message: predict_pb2.AxisSizes) -> AxisSizes | None:
    return AxisSizes(message.least, message.most or None, message.example or None) if message.least else None


def read_description(
    response: predict_pb2.OpenResponse, agent: str, asked: SessionOptions | None = None
) -> SystemDescription:
    """Returns the description of a session opened by the remote agent at an address.

    Raises AgentError if the response is not valid, or the agent has ignored an option that was ``asked`` for.
    """
    try:
        manifest = ModelManifest.model_validate_json(response.manifest_json)
        environment = _read_environment(json.loads(response.environment_json))
    except (ValidationError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise AgentError(
            f"agent {agent}: its description of the model cannot be read; is it of another version? "
            + " ".join(str(error).split())[:200]
        ) from error
    if asked is not None:
        _check_obeyed(response, agent, asked)
    sizes = {each.input: tuple(map(_read_axis, each.axes)) for each in response.sizes}
    return SystemDescription(
        manifest=manifest.with_sizes(sizes),
        checksums=dict(response.checksums),
        framework_version=response.framework_version,
        device=read_device(response.device),
        threads=response.threads or None,
        preprocess_threads=response.preprocess_threads,
        overlap=response.overlap,
        environment=environment,
        agent=agent,
        weights=_read_weights(response.weights),
        seed=response.seed if response.HasField("seed") else None,
        precision=_precision_of(response, manifest),
        cudnn_benchmark=response.cudnn_benchmark if response.HasField("cudnn_benchmark") else None,
    )


def _precision_of(response: predict_pb2.OpenResponse, manifest: ModelManifest) -> Precision | None:
    """Returns the precision of an opened model; agents of earlier versions cast none."""
    if response.precision == predict_pb2.PRECISION_OF_THE_FILE:
        return None
    if response.precision == predict_pb2.PRECISION_UNSPECIFIED:
        return None if manifest.has_own_precision else Precision.FLOAT32
    return _read_precision(response.precision)


def _check_obeyed(response: predict_pb2.OpenResponse, agent: str, asked: SessionOptions) -> None:
    """Raises AgentError if an agent of an earlier version has ignored an option that it does not know."""
    passed_over = []
    if response.precision == predict_pb2.PRECISION_UNSPECIFIED and asked.precision is not None:
        passed_over.append(f"the precision {asked.precision.value}")
    if asked.cudnn_benchmark is not None and not response.HasField("cudnn_benchmark"):
        passed_over.append("cudnn_benchmark")
    if passed_over:
        raise AgentError(
            f"agent {agent}: is an earlier version that does not know {' and '.join(passed_over)}; "
            "update it, or leave that out"
        )


def _read_environment(document: dict[str, Any]) -> Environment:
    # fields that only a newer agent knows are ignored
    known = {field.name for field in fields(Environment)}
    values = {name: value for name, value in document.items() if name in known}
    values["gpus"] = tuple(Gpu(gpu["name"], gpu["memory_bytes"], gpu["uuid"]) for gpu in values["gpus"])
    return Environment(**values)
