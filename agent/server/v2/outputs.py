"""The outputs of a response: those that the request names, as tensors or as their best classes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.server.tensors import array_bytes
from agent.server.v2.datatypes import BYTES, datatype_of
from agent.server.v2.messages import InferAnswer
from agent.server.v2.tensors import check_parameters, shown
from manifests.errors import InputError, PredictionError, suggestion
from protos.inference.v2 import grpc_service_pb2 as pb

_CLASSIFICATION = "classification"


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that a request wants.

    Attributes:
        name: Its name.
        classes: The number of best classes that are wanted instead of the tensor; 0 wants the tensor.
    """

    name: str
    classes: int = 0


def requested_outputs(
    message: pb.ModelInferRequest, known: Sequence[str], what: str
) -> tuple[RequestedOutput, ...]:
    """Returns the outputs that a request wants: those that it names, or all.

    Args:
        message: The request.
        known: The names of the model's outputs.
        what: Names the model in errors.

    Raises:
        InputError: It names one that is not there, or one twice.
    """
    if not message.outputs:
        return tuple(map(RequestedOutput, known))
    found: dict[str, RequestedOutput] = {}
    for item in message.outputs:
        if item.name not in known:
            raise InputError(f'{what}: has no output "{shown(item.name)}"; {suggestion(item.name, known)}')
        if item.name in found:
            raise InputError(f'{what}: output "{item.name}" is asked for twice')
        where = f'{what}: output "{item.name}"'
        check_parameters(item.parameters, where)
        found[item.name] = RequestedOutput(item.name, _classes(item, where))
    return tuple(found.values())


def add_outputs(
    response: pb.ModelInferResponse,
    wanted: Sequence[RequestedOutput],
    tensors: Mapping[str, NDArray[Any]],
    labels: Sequence[str],
) -> InferAnswer:
    """Writes outputs into a response.

    Args:
        response: The response, which gets the head of each output.
        wanted: The outputs.
        tensors: What the model gave.
        labels: The names of its classes, where it has any.

    Raises:
        PredictionError: The model did not give an output, or none that can be sent.
        InputError: Classes are wanted of an output that is no scores of classes.
    """
    raw: list[bytes | memoryview] = []
    for output in wanted:
        array = tensors.get(output.name)
        if array is None:
            raise PredictionError(f'the model gave no output "{output.name}"')
        if output.classes:
            shape, content = _best_classes(array, output, labels)
            response.outputs.add(name=output.name, datatype=BYTES, shape=shape)
            raw.append(content)
        else:
            response.outputs.add(name=output.name, datatype=datatype_of(array.dtype).name, shape=array.shape)
            raw.append(array_bytes(array))
    return InferAnswer(response, raw)


def _classes(item: pb.ModelInferRequest.InferRequestedOutputTensor, where: str) -> int:
    if _CLASSIFICATION not in item.parameters:
        return 0
    parameter = item.parameters[_CLASSIFICATION]
    chosen = parameter.WhichOneof("parameter_choice")
    if chosen not in {"int64_param", "uint64_param"} or getattr(parameter, chosen) < 1:
        raise InputError(f"{where}: {_CLASSIFICATION} is the number of classes: a whole number from 1 on")
    return int(getattr(parameter, chosen))


def _best_classes(
    array: NDArray[Any], output: RequestedOutput, labels: Sequence[str]
) -> tuple[tuple[int, ...], bytes]:
    """The shape and the elements of ``score:class:label``, the best first; of equal ones the first class."""
    if array.ndim < 2 or any(side != 1 for side in array.shape[2:]) or array.dtype.kind not in "iuf":
        raise InputError(
            f'output "{output.name}": {_CLASSIFICATION} is of scores, inputs × classes; '
            f"this is {array.dtype} of shape {list(array.shape)}"
        )
    scores = array.reshape(array.shape[:2])
    order = np.argsort(-scores.astype(np.float64), axis=1, kind="stable")[:, : output.classes]
    texts = (
        f"{row[place]:f}:{place}" + (f":{labels[place]}" if place < len(labels) else "")
        for row, places in zip(scores, order, strict=True)
        for place in places
    )
    content = b"".join(struct.pack("<I", len(text)) + text for text in (text.encode() for text in texts))
    return order.shape, content
