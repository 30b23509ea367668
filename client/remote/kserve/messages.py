"""``ModelInferRequest`` and the response to it, as a client writes and reads them.

See ``agent.protocol.wire`` for why the library does not do the whole of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from inferometer.agent.inference.predictor import Tensors
from inferometer.agent.protocol.tensors import array_bytes, read_array
from inferometer.agent.protocol.v2_datatypes import DATATYPES, Datatype
from inferometer.agent.protocol.v2_shared_memory import BYTE_SIZE, OFFSET, REGION
from inferometer.agent.protocol.wire import cut_out, length_delimited
from inferometer.manifests.errors import InputError, PredictionError
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

_RAW_INPUTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RAW_OUTPUTS = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
TIMES = ("predict_ns", "queue_ns", "batch_size", "batch_ns")


@dataclass(frozen=True, slots=True, eq=False)
class InferReply:
    """The answer to one request.

    Attributes:
        outputs: By the names that the server gives them, in its order.
        times: The times that the server reports, by the names of ``evaluators.load.target.Answers.answered``.
    """

    outputs: Tensors
    times: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RequestForm:
    """What is the same in all requests to a model; names are the server's.

    Attributes:
        model_name: The model.
        model_version: Which version; empty leaves the choice to the server.
        input_name: The input.
        datatype: The input's.
        outputs: The requested outputs; none means all.
    """

    model_name: str
    model_version: str
    input_name: str
    datatype: Datatype
    outputs: tuple[str, ...] = ()

    def encode(self, batch: NDArray[Any]) -> bytes:
        """Returns the request for a batch, whose dtype is that of ``datatype``."""
        head = self._head(batch.shape).SerializeToString()
        return b"".join([head, *length_delimited(_RAW_INPUTS, [array_bytes(batch)])])

    def encode_placed(self, shape: Sequence[int], region: str, offset: int = 0) -> bytes:
        """Returns the request for a batch of that shape in a region of shared memory."""
        message = self._head(shape)
        parameters = message.inputs[0].parameters
        parameters[REGION].string_param = region
        parameters[BYTE_SIZE].int64_param = math.prod(shape) * self.datatype.dtype.itemsize
        if offset:
            parameters[OFFSET].int64_param = offset
        return message.SerializeToString()

    def decode(self, answer: bytes) -> InferReply:
        """Reads the answer to a request; see ``decode_reply``."""
        return decode_reply(answer)

    def _head(self, shape: Sequence[int]) -> pb.ModelInferRequest:
        return pb.ModelInferRequest(
            model_name=self.model_name,
            model_version=self.model_version,
            inputs=[
                pb.ModelInferRequest.InferInputTensor(
                    name=self.input_name, datatype=self.datatype.name, shape=shape
                )
            ],
            outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in self.outputs],
        )


def decode_reply(content: bytes) -> InferReply:
    """Reads a ``ModelInferResponse`` with raw or typed contents.

    Raises:
        PredictionError: It is malformed, or its tensors contradict their description.
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
    return InferReply(
        outputs, {name: number for name in TIMES if (number := _number(message, name)) is not None}
    )


def _read_output(output: pb.ModelInferResponse.InferOutputTensor, raw: memoryview | None) -> NDArray[Any]:
    what = f'output "{output.name}"'
    datatype = DATATYPES.get(output.datatype)
    if datatype is None:
        raise InputError(f"{what}: datatype {output.datatype} is not numeric")
    if raw is None:
        if datatype.contents is None:
            raise InputError(f"{what}: {datatype.name} has no typed contents")
        elements = np.array(getattr(output.contents, datatype.contents))
        raw = array_bytes(elements.astype(datatype.dtype))
    return read_array(datatype.dtype.name, tuple(output.shape), raw, what)


def _number(message: pb.ModelInferResponse, name: str) -> int | None:
    """A whole number among the parameters of a response; None if it is missing, negative or no number."""
    if name not in message.parameters:
        return None
    parameter = message.parameters[name]
    chosen = parameter.WhichOneof("parameter_choice")
    if chosen not in {"int64_param", "uint64_param"}:
        return None
    number = int(getattr(parameter, chosen))
    return number if number >= 0 else None


def outputs_in_order(found: Tensors, wanted: Sequence[str]) -> Tensors:
    """Returns the requested outputs, in that order; all of them if none is requested.

    Raises:
        PredictionError: One is missing.
    """
    if not wanted:
        return found
    for name in wanted:
        if name not in found:
            have = ", ".join(f'"{other}"' for other in found) or "none"
            raise PredictionError(
                f'the server did not return the requested output "{name}"; it returned: {have}'
            )
    return {name: found[name] for name in wanted}
