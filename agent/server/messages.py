"""The messages that carry tensors: ``PredictRequest`` and ``PredictResponse``, to and from bytes.

See ``agent.server.wire`` for why the library does not do the whole of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from agent.inputs import EncodedImage, Payload, Pixels, Url
from agent.results import (
    BatchResult,
    Classifications,
    InputFailure,
    Outputs,
    QueueTimes,
    RawOutputs,
    Stage,
    StageTimes,
)
from agent.server.span_messages import TracePart, read_trace_part, trace_part_message
from agent.server.tensors import array_bytes, element_name, fill_tensor, read_array, read_tensor
from agent.server.wire import Parts, Span, cut_out, length_delimited, padding
from manifests.errors import InputError, PredictionError
from protos.inferscope.v1 import predict_pb2, tensor_pb2

_BATCH = predict_pb2.PredictRequest.BATCH_FIELD_NUMBER
_RAW = predict_pb2.PredictResponse.RAW_FIELD_NUMBER
_TENSORS = predict_pb2.RawOutputs.TENSORS_FIELD_NUMBER
_TENSOR = tensor_pb2.NamedTensor.TENSOR_FIELD_NUMBER
_CONTENT = tensor_pb2.Tensor.CONTENT_FIELD_NUMBER
_TRACE_KEY = bytes([predict_pb2.PredictResponse.TRACE_FIELD_NUMBER << 3 | 2])
"""What a message begins with that has nothing but ``trace``; results need not be read for it."""

_STAGES = {
    Stage.READ: predict_pb2.STAGE_READ,
    Stage.PREPROCESS: predict_pb2.STAGE_PREPROCESS,
    Stage.PREDICT: predict_pb2.STAGE_PREDICT,
    Stage.POSTPROCESS: predict_pb2.STAGE_POSTPROCESS,
}
_STAGES_BACK = {number: stage for stage, number in _STAGES.items()}


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor of a message that was read: its header, and its content where it lies in the message."""

    dtype: str
    shape: tuple[int, ...]
    content: memoryview

    def array(self, what: str) -> NDArray[Any]:
        """Returns the array; see ``agent.server.tensors.read_array``."""
        return read_array(self.dtype, self.shape, self.content, what)


@dataclass(frozen=True, slots=True)
class PredictCall:
    """A ``PredictRequest`` that was read.

    Attributes:
        message: The request without its ``batch``.
        batch: The batch that came as one tensor, if one did.
    """

    message: predict_pb2.PredictRequest
    batch: TensorView | None

    @property
    def size(self) -> int:
        """How many inputs it has, by its own account."""
        return self.batch.shape[0] if self.batch and self.batch.shape else len(self.message.inputs)


def encode_batch_request(session_id: str, batch: NDArray[Any]) -> bytes:
    """Returns a ``PredictRequest`` for a batch that is one preprocessed tensor.

    Raises:
        InputError: The tensor's element type cannot travel.
    """
    head = predict_pb2.PredictRequest(session_id=session_id).SerializeToString()
    field = length_delimited(_BATCH, _tensor_parts(batch))
    return b"".join([_padding(predict_pb2.PredictRequest.PADDING_FIELD_NUMBER, head, field), head, *field])


def encode_inputs_request(
    session_id: str, inputs: Sequence[tuple[str, Payload]], *, more: bool = False
) -> bytes:
    """Returns a ``PredictRequest`` for inputs, given as their ids and what was read.

    With ``more``, another batch of the same round follows.

    Raises:
        InputError: A tensor's element type cannot travel.
    """
    message = predict_pb2.PredictRequest(session_id=session_id, more=more)
    for id_, payload in inputs:
        item = message.inputs.add(id=id_)
        if isinstance(payload, EncodedImage):
            item.encoded_image = payload.content
        elif isinstance(payload, Url):
            item.url = payload.address
        elif isinstance(payload, Pixels):
            fill_tensor(item.pixels, payload.array)
        else:
            fill_tensor(item.tensor, payload.array)
    return message.SerializeToString()


def decode_request(content: bytes) -> PredictCall:
    """Reads a ``PredictRequest``.

    Raises:
        DecodeError: This is none.
    """
    rest, batches = cut_out(content, _BATCH)
    if len(batches) > 1:
        raise DecodeError("field batch is there more than once")
    batch = _read_tensor_view(content, batches[0]) if batches else None
    return PredictCall(predict_pb2.PredictRequest.FromString(rest), batch)


def encode_answer(answer: BatchResult | TracePart) -> bytes:
    """Returns a ``PredictResponse``: of a result, or in a traced stream of spans.

    Raises:
        PredictionError: The model's output has an element type that cannot travel.
    """
    if isinstance(answer, TracePart):
        return predict_pb2.PredictResponse(trace=trace_part_message(answer)).SerializeToString()
    return encode_response(answer)


def encode_response(result: BatchResult) -> bytes:
    """Returns a ``PredictResponse``.

    Raises:
        PredictionError: The model's output has an element type that cannot travel.
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
    if not isinstance(result.outputs, RawOutputs):
        return head
    tensors: Parts = []
    for name, array in result.outputs.tensors.items():
        named = tensor_pb2.NamedTensor(name=name).SerializeToString()
        try:
            content = _tensor_parts(array)
        except InputError as error:
            raise PredictionError(f"output {name}: {error}") from error
        tensor = length_delimited(_TENSOR, content)
        tensors += length_delimited(_TENSORS, [named, *tensor])
    field = length_delimited(_RAW, tensors)
    return b"".join([_padding(predict_pb2.PredictResponse.PADDING_FIELD_NUMBER, head, field), head, *field])


def decode_answer(content: bytes) -> BatchResult | TracePart:
    """Reads a ``PredictResponse``: a result, or spans.

    Raises:
        DecodeError: This is none.
    """
    if content[:1] != _TRACE_KEY:
        return decode_response(content)
    try:
        return read_trace_part(predict_pb2.PredictResponse.FromString(content).trace)
    except ValueError as error:
        raise DecodeError(str(error)) from error


def decode_response(content: bytes) -> BatchResult:
    """Reads a ``PredictResponse``; large tensors are views of ``content``.

    Raises:
        DecodeError: This is none.
    """
    rest, raws = cut_out(content, _RAW)
    message = predict_pb2.PredictResponse.FromString(rest)
    try:
        outputs = _read_raw(content, raws[0]) if raws else _read_classifications(message)
    except InputError as error:
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
    """What goes before a message of which ``field`` is the last one, so that its first tensor is aligned."""
    before = itertools.takewhile(lambda part: isinstance(part, bytes), field)
    return padding(number, len(head) + sum(map(len, before)))


def _read_tensor_view(content: bytes, span: Span) -> TensorView:
    rest, spans = cut_out(content, _CONTENT, span)
    message = tensor_pb2.Tensor.FromString(rest)
    # Of a field that is there more than once, the last one counts.
    start, end = spans[-1] if spans else (0, 0)
    return TensorView(message.dtype, tuple(message.shape), memoryview(content)[start:end])


def _read_raw(content: bytes, span: Span) -> Outputs:
    tensors: dict[str, NDArray[Any]] = {}
    for named in cut_out(content, _TENSORS, span)[1]:
        rest, spans = cut_out(content, _TENSOR, named)
        name = tensor_pb2.NamedTensor.FromString(rest).name
        if not spans:
            raise DecodeError(f"output {name} has no tensor")
        tensors[name] = _read_tensor_view(content, spans[-1]).array(f"output {name}")
    return RawOutputs(tensors)


def _read_classifications(message: predict_pb2.PredictResponse) -> Outputs | None:
    if not message.HasField("classifications"):
        return None
    return Classifications(
        indices=read_tensor(message.classifications.indices, "indices"),
        probabilities=read_tensor(message.classifications.probabilities, "probabilities"),
    )
