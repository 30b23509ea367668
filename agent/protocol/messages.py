"""Converts the messages of Predict and PredictStream, which contain tensors, to and from bytes.

The messages of PredictStream have all fields of Predict's messages, with the same numbers, so one function
reads both.

See ``agent.protocol.tensors`` for why the protobuf library alone does not encode them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from inferometer.agent.inference.stages import BatchResult, InputFailure, QueueTimes, Stage, StageTimes
from inferometer.agent.preprocessing.inputs import (
    EncodedImage,
    NamedTensors,
    Payload,
    Pixels,
    Tensors,
    Text,
    Url,
)
from inferometer.agent.protocol.conversion import TracePart, read_trace_part, trace_part_message
from inferometer.agent.protocol.tensors import (
    Parts,
    Span,
    array_bytes,
    cut_out,
    element_name,
    fill_named,
    fill_tensor,
    length_delimited,
    padding,
    read_array,
    read_named,
    read_tensor,
)
from inferometer.agent.tasks.predictions import Classifications, Outputs, RawOutputs
from inferometer.agent.tasks.registry import PREDICTIONS
from inferometer.manifests.errors import ConfigurationError, InputError, PredictionError
from inferometer.protos.inferometer.v1 import predict_pb2, tensor_pb2

_BATCH = predict_pb2.PredictRequest.BATCH_FIELD_NUMBER
_RAW = predict_pb2.PredictResponse.RAW_FIELD_NUMBER
_TENSORS = predict_pb2.RawOutputs.TENSORS_FIELD_NUMBER  # that of Predictions.columns too
_PREDICTIONS = predict_pb2.PredictResponse.PREDICTIONS_FIELD_NUMBER
_TENSOR = tensor_pb2.NamedTensor.TENSOR_FIELD_NUMBER
_CONTENT = tensor_pb2.Tensor.CONTENT_FIELD_NUMBER
_TRACE_KEY = bytes([predict_pb2.PredictStreamResponse.TRACE_FIELD_NUMBER << 3 | 2])
"""The first byte of a message that contains only ``trace``; comparing it saves decoding a result."""

_STAGES = {stage: predict_pb2.Stage.Value(f"STAGE_{stage.name}") for stage in Stage}
_STAGES_BACK = {number: stage for stage, number in _STAGES.items()}


@dataclass(frozen=True, slots=True)
class TensorView:
    """A decoded tensor: its header, and a view of its content within the message."""

    dtype: str
    shape: tuple[int, ...]
    content: memoryview

    def array(self, what: str) -> NDArray[Any]:
        """Returns the array; see ``agent.protocol.tensors.read_array``."""
        return read_array(self.dtype, self.shape, self.content, what)


@dataclass(frozen=True, slots=True)
class PredictCall:
    """A decoded ``PredictRequest`` or ``PredictStreamRequest``; its ``batch``, if any, is kept separately."""

    message: predict_pb2.PredictStreamRequest
    batch: TensorView | None

    @property
    def size(self) -> int:
        """The number of inputs that the message declares."""
        if self.batch is not None:
            return self.batch.shape[0] if self.batch.shape else 0
        sizes = [each.tensor.shape[0] for each in self.message.tensors if each.tensor.shape]
        return max([len(self.message.inputs), *sizes])

    def preprocessed(self) -> Tensors | NDArray[Any] | None:
        """Returns a batch of preprocessed tensors by name, or the only tensor; None for other inputs.

        Raises InputError if it also has other inputs, or a tensor does not match its own description.
        """
        if self.batch is None and not self.message.tensors:
            return None
        if self.message.inputs or (self.batch is not None and self.message.tensors):
            given = "inputs" if self.message.inputs else "tensors"
            other = "batch" if self.batch is not None else "tensors"
            raise InputError(f"the request has both {given} and {other}; give one of them")
        return read_named(self.message.tensors, "batch") if self.batch is None else self.batch.array("batch")


def encode_batch_request(session_id: str, batch: Tensors | NDArray[Any]) -> bytes:
    """Returns a ``PredictRequest`` for a batch of preprocessed tensors, by name or for the only input.

    A single tensor is sent without its name, a form that agents of every version can read. Raises InputError
    if the protocol does not support a tensor's element type.
    """
    if not isinstance(batch, np.ndarray):
        if len(batch) != 1:
            message = predict_pb2.PredictRequest(session_id=session_id)
            fill_named(message.tensors, batch)
            return message.SerializeToString()
        [batch] = batch.values()
    head = predict_pb2.PredictRequest(session_id=session_id).SerializeToString()
    field = length_delimited(_BATCH, _tensor_parts(batch))
    return b"".join([_padding(predict_pb2.PredictRequest.PADDING_FIELD_NUMBER, head, field), head, *field])


def encode_inputs_request(
    session_id: str, inputs: Sequence[tuple[str, Payload]], *, more: bool = False
) -> bytes:
    """Returns a ``PredictStreamRequest`` for inputs, given as their ids and payloads.

    With ``more``, another batch of the same round follows. Raises InputError if the protocol does not support
    a tensor's element type.
    """
    message = predict_pb2.PredictStreamRequest(session_id=session_id, more=more)
    for id_, payload in inputs:
        item = message.inputs.add(id=id_)
        if isinstance(payload, EncodedImage):
            item.encoded_image = payload.content
        elif isinstance(payload, Url):
            item.url = payload.address
        elif isinstance(payload, Pixels):
            fill_tensor(item.pixels, payload.array)
        elif isinstance(payload, Text):
            item.text.text = payload.text
            if payload.pair is not None:
                item.text.pair = payload.pair
        elif isinstance(payload, NamedTensors):
            fill_named(item.tensors.tensors, payload.arrays)
        else:
            fill_tensor(item.tensor, payload.array)
    return message.SerializeToString()


def decode_request(content: bytes) -> PredictCall:
    """Reads a ``PredictRequest`` or a ``PredictStreamRequest``; raises DecodeError if it is not valid."""
    rest, batches = cut_out(content, _BATCH)
    if len(batches) > 1:
        raise DecodeError("field batch occurs more than once")
    batch = _read_tensor_view(content, batches[0]) if batches else None
    return PredictCall(predict_pb2.PredictStreamRequest.FromString(rest), batch)


def encode_answer(answer: BatchResult | TracePart) -> bytes:
    """Returns a ``PredictStreamResponse`` with a result or, in a traced stream, with spans.

    Raises PredictionError like ``encode_response``.
    """
    if isinstance(answer, TracePart):
        return predict_pb2.PredictStreamResponse(trace=trace_part_message(answer)).SerializeToString()
    return encode_response(answer)


def encode_response(result: BatchResult) -> bytes:
    """Returns a ``PredictResponse``.

    Raises PredictionError if the protocol does not support the element type of an output.
    """
    message = predict_pb2.PredictResponse(
        input_ids=result.input_ids,
        failures=[
            predict_pb2.InputFailure(input_id=f.input_id, stage=_STAGES[f.stage], message=f.message)
            for f in result.failures
        ],
        times=_times_message(result),
    )
    if isinstance(result.outputs, Classifications):
        fill_tensor(message.classifications.indices, result.outputs.indices)
        fill_tensor(message.classifications.probabilities, result.outputs.probabilities)
    head = message.SerializeToString()
    if result.outputs is None or isinstance(result.outputs, Classifications):
        return head
    if isinstance(result.outputs, RawOutputs):
        field = length_delimited(_RAW, _named_parts(result.outputs.tensors))
    else:
        kind = predict_pb2.Predictions(kind=result.outputs.kind).SerializeToString()
        field = length_delimited(_PREDICTIONS, [*_named_parts(result.outputs.columns()), kind])
    return b"".join([_padding(predict_pb2.PredictResponse.PADDING_FIELD_NUMBER, head, field), head, *field])


def _named_parts(arrays: Tensors) -> Parts:
    tensors: Parts = []
    for name, array in arrays.items():
        named = tensor_pb2.NamedTensor(name=name).SerializeToString()
        try:
            content = _tensor_parts(array)
        except InputError as error:
            raise PredictionError(f"output {name}: {error}") from error
        tensor = length_delimited(_TENSOR, content)
        tensors += length_delimited(_TENSORS, [named, *tensor])
    return tensors


def decode_answer(content: bytes) -> BatchResult | TracePart:
    """Reads a ``PredictStreamResponse``: a result, or spans; raises DecodeError if it is not valid."""
    if content[:1] != _TRACE_KEY:
        return decode_response(content)
    try:
        return read_trace_part(predict_pb2.PredictStreamResponse.FromString(content).trace)
    except ValueError as error:
        raise DecodeError(str(error)) from error


def decode_response(content: bytes) -> BatchResult:
    """Reads a ``PredictResponse``; large tensors are views of ``content``. Raises DecodeError."""
    rest, raws = cut_out(content, _RAW)
    if not raws:
        rest, others = cut_out(content, _PREDICTIONS)
    message = predict_pb2.PredictResponse.FromString(rest)
    try:
        if raws:
            outputs: Outputs | None = RawOutputs(_read_tensors(content, raws[0])[1])
        else:
            outputs = _read_predictions(content, others[0]) if others else _read_classifications(message)
    except (InputError, ConfigurationError, ValueError) as error:
        raise DecodeError(str(error)) from error
    times = message.times
    return BatchResult(
        input_ids=tuple(message.input_ids),
        outputs=outputs,
        failures=tuple(
            InputFailure(f.input_id, _STAGES_BACK.get(f.stage, Stage.PREDICT), f.message)
            for f in message.failures
        ),
        times=StageTimes(times.read_ns, times.preprocess_ns, times.predict_ns, times.postprocess_ns),
        queue=QueueTimes(times.queue_ns, times.batch_ns, times.batch_size) if times.batch_size else None,
    )


def _times_message(result: BatchResult) -> predict_pb2.StageTimes:
    times, queue = result.times, result.queue
    message = predict_pb2.StageTimes(
        read_ns=times.read_ns,
        preprocess_ns=times.preprocess_ns,
        predict_ns=times.predict_ns,
        postprocess_ns=times.postprocess_ns,
    )
    if queue is not None:
        message.queue_ns, message.batch_ns = queue.queue_ns, queue.batch_ns
        message.batch_size = queue.batch_size
    return message


def _tensor_parts(array: NDArray[Any]) -> Parts:
    head = tensor_pb2.Tensor(dtype=element_name(array), shape=array.shape).SerializeToString()
    return [head, *length_delimited(_CONTENT, [array_bytes(array)])]


def _padding(number: int, head: bytes, field: Parts) -> bytes:
    """Returns the padding before a message's last field, ``field``, that aligns the first tensor in it."""
    before = itertools.takewhile(lambda part: isinstance(part, bytes), field)
    return padding(number, len(head) + sum(map(len, before)))


def _read_tensor_view(content: bytes, span: Span) -> TensorView:
    rest, spans = cut_out(content, _CONTENT, span)
    message = tensor_pb2.Tensor.FromString(rest)
    # of a repeated field, the last one is valid
    start, end = spans[-1] if spans else (0, 0)
    return TensorView(message.dtype, tuple(message.shape), memoryview(content)[start:end])


def _read_predictions(content: bytes, span: Span) -> Outputs:
    rest, columns = _read_tensors(content, span)
    kind = predict_pb2.Predictions.FromString(rest).kind
    return PREDICTIONS.find(kind).of_columns(columns)


def _read_tensors(content: bytes, span: Span) -> tuple[bytes, Tensors]:
    """Returns the rest of a message without its named tensors, and those tensors."""
    tensors: dict[str, NDArray[Any]] = {}
    other, found = cut_out(content, _TENSORS, span)
    for named in found:
        rest, spans = cut_out(content, _TENSOR, named)
        name = tensor_pb2.NamedTensor.FromString(rest).name
        if not spans:
            raise DecodeError(f"output {name} has no tensor")
        tensors[name] = _read_tensor_view(content, spans[-1]).array(f"output {name}")
    return other, tensors


def _read_classifications(message: predict_pb2.PredictResponse) -> Outputs | None:
    if not message.HasField("classifications"):
        return None
    return Classifications(
        indices=read_tensor(message.classifications.indices, "indices"),
        probabilities=read_tensor(message.classifications.probabilities, "probabilities"),
    )
