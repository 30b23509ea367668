"""The messages that carry tensors: ``ModelInferRequest`` and the responses to it, to and from bytes.

See ``agent.protocol.wire`` for why the library does not do the whole of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferometer.agent.protocol.wire import Parts, cut_out, length_delimited
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

_RAW_INPUTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RAW_OUTPUTS = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_INFER_RESPONSE = pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER

_SMALL_BYTES = 16 * 1024
"""Below this the library reads a message in less time than Python takes to look for the contents."""


@dataclass(slots=True)
class InferCall:
    """A ``ModelInferRequest`` without its raw contents, and these, where they lie in the request.

    They are one for each input, or none; None is that of an input with typed contents beside others.
    """

    message: pb.ModelInferRequest
    raw: Sequence[memoryview | None]


@dataclass(slots=True)
class InferAnswer:
    """A ``ModelInferResponse`` without its raw contents, and these, one for each output."""

    message: pb.ModelInferResponse
    raw: Sequence[bytes | memoryview]


def decode_request(content: bytes) -> InferCall:
    """Reads a ``ModelInferRequest``; raises DecodeError if this is none."""
    if len(content) < _SMALL_BYTES:
        message = pb.ModelInferRequest.FromString(content)
        raw = [memoryview(each) for each in message.raw_input_contents]
        message.ClearField("raw_input_contents")
        return InferCall(message, raw)
    rest, spans = cut_out(content, _RAW_INPUTS)
    view = memoryview(content)
    return InferCall(pb.ModelInferRequest.FromString(rest), [view[start:end] for start, end in spans])


def encode_answer(answer: InferAnswer) -> bytes:
    """Returns a ``ModelInferResponse``."""
    return b"".join(_parts(answer))


def encode_stream_answer(answer: InferAnswer | pb.ModelStreamInferResponse) -> bytes:
    """Returns a ``ModelStreamInferResponse``, which an error is already."""
    if isinstance(answer, pb.ModelStreamInferResponse):
        return answer.SerializeToString()
    return b"".join(length_delimited(_INFER_RESPONSE, _parts(answer)))


def _parts(answer: InferAnswer) -> Parts:
    parts: Parts = [answer.message.SerializeToString()]
    for content in answer.raw:
        parts += length_delimited(_RAW_OUTPUTS, [content])
    return parts
