"""``ModelInferRequest`` and the response to it, as a client writes and reads them.

See ``agent.server.wire`` for why the library does not do the whole of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from agent.predictor import Tensors
from agent.server.tensors import array_bytes, read_array
from agent.server.v2.datatypes import DATATYPES, Datatype
from agent.server.wire import cut_out, length_delimited
from manifests.errors import InputError, PredictionError
from protos.inference.v2 import grpc_service_pb2 as pb

_RAW_INPUTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RAW_OUTPUTS = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
UNKNOWN_NS = -1


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """What a server tells of one request, in nanoseconds; what it does not tell is -1, the size 0.

    Attributes:
        predict_ns: How long the prediction took of the batch that the request was in.
        queue_ns: From when the request was ready for the model until its batch began.
        batch_size: The inputs in that batch, of all requests together.
        batch_ns: From when that batch began until the prediction did.
    """

    predict_ns: int = UNKNOWN_NS
    queue_ns: int = UNKNOWN_NS
    batch_size: int = 0
    batch_ns: int = UNKNOWN_NS


@dataclass(frozen=True, slots=True, eq=False)
class InferReply:
    """The answer to one request.

    Attributes:
        outputs: By the names that the server gives them, in its order.
        times: What the server tells of it.
    """

    outputs: Tensors
    times: ServerTimes


@dataclass(frozen=True, slots=True)
class RequestForm:
    """What is the same in all requests to a model.

    Attributes:
        model_name: What the server calls the model.
        model_version: Which version; empty leaves the choice to the server.
        input_name: What the server calls the input.
        datatype: The input's.
        outputs: The outputs that are asked for; none means all.
    """

    model_name: str
    model_version: str
    input_name: str
    datatype: Datatype
    outputs: tuple[str, ...] = ()

    def encode(self, batch: NDArray[Any]) -> bytes:
        """Returns the request for a batch, whose dtype is that of ``datatype``."""
        message = pb.ModelInferRequest(
            model_name=self.model_name,
            model_version=self.model_version,
            inputs=[
                pb.ModelInferRequest.InferInputTensor(
                    name=self.input_name, datatype=self.datatype.name, shape=batch.shape
                )
            ],
            outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in self.outputs],
        )
        return b"".join([message.SerializeToString(), *length_delimited(_RAW_INPUTS, [array_bytes(batch)])])


def decode_reply(content: bytes) -> InferReply:
    """Reads a ``ModelInferResponse`` with raw or typed contents.

    Raises:
        PredictionError: It is none, or its tensors are not what they are said to be.
    """
    try:
        rest, spans = cut_out(content, _RAW_OUTPUTS)
        message = pb.ModelInferResponse.FromString(rest)
    except DecodeError as error:
        raise PredictionError(f"the server's answer cannot be understood: {error}") from error
    view = memoryview(content)
    raw = [view[start:end] for start, end in spans]
    if raw and len(raw) != len(message.outputs):
        raise PredictionError(
            f"the server's answer has {len(raw)} raw_output_contents for {len(message.outputs)} outputs"
        )
    outputs = {}
    for place, output in enumerate(message.outputs):
        try:
            outputs[output.name] = _read_output(output, raw[place] if raw else None)
        except InputError as error:
            raise PredictionError(f"the server's answer: {error}") from error
    return InferReply(outputs, _times(message))


def _read_output(output: pb.ModelInferResponse.InferOutputTensor, raw: memoryview | None) -> NDArray[Any]:
    """One output tensor.

    Raises:
        InputError: Its datatype is none of numbers, or its elements do not fit its shape.
    """
    what = f'output "{output.name}"'
    datatype = DATATYPES.get(output.datatype)
    if datatype is None:
        raise InputError(f"{what}: datatype {output.datatype} is none of numbers")
    if raw is None:
        if datatype.contents is None:
            raise InputError(f"{what}: {datatype.name} has no typed contents")
        elements = np.array(getattr(output.contents, datatype.contents))
        raw = array_bytes(elements.astype(datatype.dtype))
    return read_array(datatype.dtype.name, tuple(output.shape), raw, what)


def _times(message: pb.ModelInferResponse) -> ServerTimes:
    return ServerTimes(
        _number(message, "predict_ns", UNKNOWN_NS),
        _number(message, "queue_ns", UNKNOWN_NS),
        _number(message, "batch_size", 0),
        _number(message, "batch_ns", UNKNOWN_NS),
    )


def _number(message: pb.ModelInferResponse, name: str, default: int) -> int:
    """A whole number among the parameters of a response, where there is one."""
    if name not in message.parameters:
        return default
    parameter = message.parameters[name]
    chosen = parameter.WhichOneof("parameter_choice")
    if chosen not in {"int64_param", "uint64_param"}:
        return default
    return max(default, int(getattr(parameter, chosen)))


def outputs_in_order(found: Tensors, wanted: Sequence[str]) -> Tensors:
    """Returns the outputs that were asked for, in that order; all, as they came, where none were named.

    Raises:
        PredictionError: One is not there.
    """
    if not wanted:
        return found
    for name in wanted:
        if name not in found:
            have = ", ".join(f'"{other}"' for other in found) or "none"
            raise PredictionError(f'the server was asked for output "{name}"; it answered with: {have}')
    return {name: found[name] for name in wanted}
