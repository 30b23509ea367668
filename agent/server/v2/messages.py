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


@dataclass(frozen=True, slots=True)
class InferCall:
    """A ``ModelInferRequest`` without its raw contents, and these, where they lie in the request."""

    message: pb.ModelInferRequest
    raw: Sequence[memoryview]


@dataclass(frozen=True, slots=True)
class InferAnswer:
    """A ``ModelInferResponse`` without its raw contents, and these, one for each output."""

    message: pb.ModelInferResponse
    raw: Sequence[bytes | memoryview]


def decode_request(content: bytes) -> InferCall:
    """Reads a ``ModelInferRequest``; raises DecodeError if this is none."""
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
