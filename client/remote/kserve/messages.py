"""``ModelInferRequest`` and its response over gRPC, and a server's names for the parts of a model.

See ``agent.protocol.tensors`` for why encoding is not left to the protobuf library alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from inferometer.agent.open_inference.codec import (
    BYTE_SIZE,
    BYTES,
    DATATYPES,
    OFFSET,
    RAW_INPUTS,
    RAW_OUTPUTS,
    REGION,
    STRINGS,
    Datatype,
    typed_elements,
    v2_version,
    whole_number,
)
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.protocol.tensors import (
    Parts,
    array_bytes,
    cut_out,
    length_delimited,
    read_array,
    strings,
)
from inferometer.manifests.errors import AgentError, ConfigurationError, InputError, PredictionError
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

TIMES = ("predict_ns", "queue_ns", "batch_size", "batch_ns")


@dataclass(frozen=True, slots=True, eq=False)
class InferReply:
    """The answer to one request.

    Attributes:
        outputs: The outputs by the server's names, in the server's order.
        times: The times that the server reports, by the names in ``evaluators.load.target.Answers.answered``.
    """

    outputs: Tensors
    times: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ServedInput:
    """An input of a model at a server.

    Attributes:
        layer: Its name in the manifest.
        name: Its name at the server.
        datatype: Its datatype, both here and at the server.
    """

    layer: str
    name: str
    datatype: Datatype


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of a tensor in a region of shared memory: its shape, and its offset in bytes."""

    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class InferForm(ABC):
    """The constant parts of all requests to a model, with the server's names.

    Attributes:
        model_name: The model.
        model_version: The version; empty leaves the choice to the server.
        inputs: The inputs, in the order of the requests.
        outputs: The requested outputs; none means all.
    """

    model_name: str
    model_version: str
    inputs: tuple[ServedInput, ...]
    outputs: tuple[str, ...] = ()

    @abstractmethod
    def encode(self, batch: Tensors) -> bytes:
        """Returns the request for a batch, with the manifest's names and the dtypes of the inputs."""

    @abstractmethod
    def encode_placed(self, places: Mapping[str, TensorPlace], region: str) -> bytes:
        """Returns the request for a batch whose tensors are at these places in a region of shared memory."""

    @abstractmethod
    def decode(self, answer: bytes) -> InferReply:
        """Reads the answer to a request.

        Raises:
            PredictionError: The response is malformed, or its tensors contradict their description.
        """


@dataclass(frozen=True, slots=True)
class RequestForm(InferForm):
    """The requests over gRPC."""

    def encode(self, batch: Tensors) -> bytes:
        """Returns the request for a batch, with the manifest's names and the dtypes of the inputs."""
        parts: Parts = [self._head([batch[each.layer].shape for each in self.inputs]).SerializeToString()]
        for each in self.inputs:
            parts += length_delimited(RAW_INPUTS, [array_bytes(batch[each.layer])])
        return b"".join(parts)

    def encode_placed(self, places: Mapping[str, TensorPlace], region: str) -> bytes:
        """Returns the request for a batch whose tensors are at these places in a region of shared memory."""
        message = self._head([places[each.layer].shape for each in self.inputs])
        for each, item in zip(self.inputs, message.inputs, strict=True):
            place, parameters = places[each.layer], item.parameters
            parameters[REGION].string_param = region
            parameters[BYTE_SIZE].int64_param = math.prod(place.shape) * each.datatype.dtype.itemsize
            if place.offset:
                parameters[OFFSET].int64_param = place.offset
        return message.SerializeToString()

    def decode(self, answer: bytes) -> InferReply:
        """Reads the answer to a request; see ``decode_reply``."""
        return decode_reply(answer)

    def _head(self, shapes: Sequence[Sequence[int]]) -> pb.ModelInferRequest:
        return pb.ModelInferRequest(
            model_name=self.model_name,
            model_version=self.model_version,
            inputs=[
                pb.ModelInferRequest.InferInputTensor(
                    name=each.name, datatype=each.datatype.name, shape=shape
                )
                for each, shape in zip(self.inputs, shapes, strict=True)
            ],
            outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in self.outputs],
        )


def decode_reply(content: bytes) -> InferReply:
    """Reads a ``ModelInferResponse`` with raw or typed contents."""
    try:
        rest, spans = cut_out(content, RAW_OUTPUTS)
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
    times = {name: whole_number(message.parameters, name, -1) for name in TIMES}
    return InferReply(outputs, {name: number for name, number in times.items() if number >= 0})


def _read_output(output: pb.ModelInferResponse.InferOutputTensor, raw: memoryview | None) -> NDArray[Any]:
    what = f'output "{output.name}"'
    datatype, shape = datatype_of_output(output.datatype, what), tuple(output.shape)
    if raw is not None:
        return read_array(datatype.dtype, shape, raw, what)
    if datatype.contents is None:
        raise InputError(f"{what}: {datatype.name} has no typed contents")
    elements = getattr(output.contents, datatype.contents)
    if datatype is STRINGS:
        return strings(elements, shape, what)
    return read_array(datatype.dtype, shape, array_bytes(typed_elements(elements, datatype, what)), what)


_TOTALS = {"success_ns": "success", "queue_ns": "queue", "input_ns": "compute_input"}
_TOTALS |= {"infer_ns": "compute_infer", "output_ns": "compute_output"}
"""The fields of ``InferStatistics`` with the total times of figures."""


def statistics_method(channel: grpc.Channel) -> Callable[..., pb.ModelStatisticsResponse]:
    """Returns the method that reads the statistics of all models; its request is empty."""
    encode, decode = pb.ModelStatisticsRequest.SerializeToString, pb.ModelStatisticsResponse.FromString
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
    method = channel.unary_unary(f"/{service}/ModelStatistics", encode, decode)
    return partial(method, pb.ModelStatisticsRequest())


def statistics_of(
    response: pb.ModelStatisticsResponse, where: str, *names: str, version: str | None = None
) -> Mapping[str, float]:
    """Returns the statistics of a model as figures of ``evaluators.load.server_statistics``.

    With the ``version`` of a manifest, they are those of the model of one of the ``names``; otherwise the
    sums over all of the response. ``where`` names the server in errors.

    Raises:
        AgentError: There are none.
    """
    found = Counter[str]()
    for model in response.model_stats:
        if version is not None and not (model.name in names and model.version == v2_version(version)):
            continue
        stats = model.inference_stats
        found.update({figure: getattr(stats, name).ns for figure, name in _TOTALS.items()})
        found.update(inferences=model.inference_count, executions=model.execution_count)
        found.update(requests=stats.success.count)
    if not found:
        raise AgentError(f"{where}: has no statistics of {names[0]}")
    return found


def datatype_of_output(name: str, what: str) -> Datatype:
    """Returns the datatype of an output; raises InputError if NumPy has no such type."""
    datatype = STRINGS if name == BYTES else DATATYPES.get(name)
    if datatype is None:
        raise InputError(f"{what}: datatype {name[:40]} is neither numeric nor {BYTES}")
    return datatype


def outputs_in_order(found: Tensors, wanted: Sequence[str]) -> Tensors:
    """Returns the requested outputs in the order of the request; all of them if none is requested.

    Raises:
        PredictionError: A requested output is missing.
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


@dataclass(frozen=True, slots=True)
class Fit:
    """The server's names for the inputs and outputs of a manifest, and its batch limits.

    Attributes:
        inputs: The inputs, in the manifest's order.
        output_names: The outputs to request; none means all.
        output_layer: The server's name of the manifest's ``probabilities_layer``.
        fewest: The minimum number of inputs in a request.
        most: The maximum number; None if the server does not report it.
    """

    inputs: tuple[ServedInput, ...]
    output_names: tuple[str, ...]
    output_layer: str | int
    fewest: int = 1
    most: int | None = None

    def check_batch(self, size: int, where: str) -> None:
        """Rejects a batch of a size that the server does not accept.

        Raises:
            ConfigurationError: The batch has too many inputs, or too few.
        """
        if self.most is not None and size > self.most:
            raise ConfigurationError(
                f"{where}: takes at most {self.most} inputs in a request, but this batch has {size}; "
                f"use --batch_size={self.most}"
            )
        if size < self.fewest:
            raise ConfigurationError(
                f"{where}: takes {self.fewest} inputs in a request, no more and no fewer, but this batch has "
                f"{size}; use --batch_size={self.fewest}, and as many inputs as fill the batches"
            )
