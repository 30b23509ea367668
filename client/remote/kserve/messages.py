"""``ModelInferRequest`` and the response to it, and whether a server's model matches a manifest.

See ``agent.protocol.wire`` for why the library does not do the whole of the messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from inferometer.agent.open_inference.codec import (
    BATCH_SIDE,
    BYTE_SIZE,
    BYTES,
    DATATYPES,
    OFFSET,
    REGION,
    STRINGS,
    Datatype,
    TensorSignature,
    inputs_of,
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
from inferometer.manifests.errors import ConfigurationError, InputError, PredictionError, suggestion
from inferometer.manifests.schema import ModelManifest
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2 import model_config_pb2

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
class ServedInput:
    """An input of a model at a server.

    Attributes:
        layer: What the manifest calls it.
        name: What the server calls it.
        datatype: Its datatype, here and there.
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
class RequestForm:
    """The constant parts of all requests to a model, with the server's names.

    Attributes:
        model_name: The model.
        model_version: Which version; empty leaves the choice to the server.
        inputs: The inputs, in the order of the requests.
        outputs: The requested outputs; none means all.
    """

    model_name: str
    model_version: str
    inputs: tuple[ServedInput, ...]
    outputs: tuple[str, ...] = ()

    def encode(self, batch: Tensors) -> bytes:
        """Returns the request for a batch, by the names of the manifest and of the inputs' dtypes."""
        parts: Parts = [self._head([batch[each.layer].shape for each in self.inputs]).SerializeToString()]
        for each in self.inputs:
            parts += length_delimited(_RAW_INPUTS, [array_bytes(batch[each.layer])])
        return b"".join(parts)

    def encode_placed(self, places: Mapping[str, TensorPlace], region: str) -> bytes:
        """Returns the request for a batch whose tensors have those places in a region of shared memory."""
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
    """Reads a ``ModelInferResponse`` with raw or typed contents.

    Raises:
        PredictionError: The response is malformed, or its tensors contradict their description.
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
    datatype, shape = datatype_named(output.datatype, what), tuple(output.shape)
    if raw is not None:
        return read_array(datatype.dtype, shape, raw, what)
    if datatype.contents is None:
        raise InputError(f"{what}: {datatype.name} has no typed contents")
    elements = getattr(output.contents, datatype.contents)
    if datatype is STRINGS:
        return strings(elements, shape, what)
    return read_array(datatype.dtype, shape, array_bytes(np.array(elements).astype(datatype.dtype)), what)


def datatype_named(name: str, what: str) -> Datatype:
    """Returns the datatype of an output; raises InputError if NumPy has none like it."""
    datatype = STRINGS if name == BYTES else DATATYPES.get(name)
    if datatype is None:
        raise InputError(f"{what}: datatype {name[:40]} is neither numeric nor {BYTES}")
    return datatype


def _number(message: pb.ModelInferResponse, name: str) -> int | None:
    """Returns an integer parameter of a response; None if it is missing, negative or not an integer."""
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


TensorMetadata = pb.ModelMetadataResponse.TensorMetadata


@dataclass(frozen=True, slots=True)
class Fit:
    """The server's names for the inputs and outputs of a manifest, and its batch limits.

    Attributes:
        inputs: The inputs, in the manifest's order.
        output_names: The outputs to request; none means all.
        output_layer: What the manifest's ``probabilities_layer`` is at the server.
        fewest: The fewest inputs that a request may have.
        most: The most; None if the server does not say.
    """

    inputs: tuple[ServedInput, ...]
    output_names: tuple[str, ...]
    output_layer: str | int
    fewest: int = 1
    most: int | None = None

    def check_batch(self, size: int, where: str) -> None:
        """Refuses a batch of a size that the server does not take.

        Raises:
            ConfigurationError: It has too many inputs, or too few.
        """
        if self.most is not None and size > self.most:
            raise ConfigurationError(
                f"{where}: takes at most {self.most} inputs in a request, and this batch has {size}; "
                f"use --batch_size={self.most}"
            )
        if size < self.fewest:
            raise ConfigurationError(
                f"{where}: takes {self.fewest} inputs in a request, no more and no fewer, and this batch has "
                f"{size}; use --batch_size={self.fewest}, and as many inputs as fill the batches"
            )


def fit(
    manifest: ModelManifest,
    metadata: pb.ModelMetadataResponse,
    config: model_config_pb2.ModelConfig | None,
    where: str,
) -> Fit:
    """Compares what a server reports about its model with a manifest.

    A server with one input gets it by the server's own name, whatever the manifest calls it; the same holds
    for the output. Several inputs have the same names here and there. What the server does not report is
    assumed to be as in the manifest, which has its labels. ``where`` names the server and the model in
    errors.

    Raises:
        ConfigurationError: They do not fit; the message names the first difference.
    """
    inputs, first_side = _fit_inputs(manifest, list(metadata.inputs), where)
    layer, names = _fit_output(manifest, list(metadata.outputs), where)
    if first_side > 0:
        return Fit(inputs, names, layer, first_side, first_side)
    limit = config.max_batch_size if config is not None else 0
    return Fit(inputs, names, layer, most=limit if limit > 0 else None)


def _fit_inputs(
    manifest: ModelManifest, found: Sequence[TensorMetadata], where: str
) -> tuple[tuple[ServedInput, ...], int]:
    """Returns the inputs at the server, and the size of their first axis, the batch."""
    described = f"the manifest of {manifest.name} {manifest.version}"
    wanted = list(inputs_of(manifest).values())
    if not found:
        return tuple(ServedInput(each.name, each.name, each.datatype) for each in wanted), BATCH_SIDE
    if len(found) != len(wanted):
        names = ", ".join(f'"{each.name}"' for each in found)
        has = "one" if len(wanted) == 1 else ", ".join(f'"{each.name}"' for each in wanted)
        count = f"{len(found)} input{'' if len(found) == 1 else 's'}"
        raise ConfigurationError(f"{where}: takes {count}, {names}; {described} has {has}")
    by_name = {each.name: each for each in found}
    if len(wanted) == 1:
        by_name = {wanted[0].name: found[0]}
    inputs, sides = [], set()
    for each in wanted:
        if each.name not in by_name:
            raise ConfigurationError(
                f'{where}: has no input "{each.name}", which {described} has; '
                f"{suggestion(each.name, by_name)}"
            )
        inputs.append(ServedInput(each.name, by_name[each.name].name, each.datatype))
        sides.add(_batch_side(each, by_name[each.name], described, where))
    fixed = sorted(sides - {BATCH_SIDE})
    if len(fixed) > 1:
        raise ConfigurationError(f"{where}: takes batches of {fixed} in its inputs, which is no one batch")
    return tuple(inputs), fixed[0] if fixed else BATCH_SIDE


def _batch_side(wanted: TensorSignature, found: TensorMetadata, described: str, where: str) -> int:
    """Returns the size of an input's first axis at the server, if the rest is as in the manifest."""
    what = f'{where}: input "{found.name}"'
    if found.datatype != wanted.datatype.name:
        raise ConfigurationError(
            f"{what}: is {found.datatype} at the server, and {wanted.datatype.name} in {described}"
        )
    shape = tuple(found.shape)
    if len(shape) != len(wanted.shape) or not _same_sides(shape[1:], wanted.dimensions) or not shape[0]:
        raise ConfigurationError(
            f"{what}: has shape {list(shape)} at the server, and {list(wanted.shape)} in {described}"
        )
    return shape[0]


def _fit_output(
    manifest: ModelManifest, outputs: Sequence[TensorMetadata], where: str
) -> tuple[str | int, tuple[str, ...]]:
    """Returns the name of the output with the scores, and the outputs to request; none requests all.

    Those of other tasks than classification are checked by their postprocessing.
    """
    layer = manifest.output.parameters.probabilities_layer
    if not outputs or manifest.output.type != "classification":
        return layer, ()
    found = _find_output(layer, outputs, where)
    what = f'{where}: output "{found.name}"'
    if found.datatype not in DATATYPES:
        raise ConfigurationError(f"{what}: is {found.datatype} at the server; scores are numbers")
    shape, labels = tuple(found.shape), manifest.output.parameters.labels
    classes = len(labels) or BATCH_SIDE
    if len(shape) < 2 or not _same_sides(shape[1:], (classes, *[1] * (len(shape) - 2))):
        shown = [BATCH_SIDE, classes]
        raise ConfigurationError(
            f"{what}: has shape {list(shape)} at the server; the manifest of {manifest.name} "
            f"{manifest.version} describes scores of shape {shown}"
        )
    return found.name, (found.name,)


def _find_output(layer: str | int, outputs: Sequence[TensorMetadata], where: str) -> TensorMetadata:
    by_name = {output.name: output for output in outputs}
    if isinstance(layer, int):
        if not 0 <= layer < len(outputs):
            raise ConfigurationError(
                f"{where}: has no output number {layer}, which the manifest names; it has {len(outputs)}"
            )
        return outputs[layer]
    if layer in by_name:
        return by_name[layer]
    if len(outputs) == 1:
        return outputs[0]
    raise ConfigurationError(
        f'{where}: has no output "{layer}", which the manifest names; {suggestion(layer, by_name)}'
    )


def _same_sides(found: Sequence[int], wanted: Sequence[int]) -> bool:
    """Returns whether two shapes may be the same; -1 is any size."""
    return len(found) == len(wanted) and all(
        BATCH_SIDE in {one, other} or one == other for one, other in zip(found, wanted, strict=True)
    )
