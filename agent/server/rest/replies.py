"""HTTP responses: JSON objects, and model outputs whose binary tensors follow the JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferometer.agent.protocol.v2_shared_memory import REGION
from inferometer.agent.server.rest.infer_request import BINARY_SIZE, InferRequest
from inferometer.agent.server.rest.json_tensors import data_of
from inferometer.agent.server.rest.json_text import list_text, text_of
from inferometer.agent.server.v2.messages import InferAnswer
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

HEADER_LENGTH = "inference-header-content-length"
"""The header with the number of JSON bytes in a body; the binary tensors follow them."""
JSON = "application/json"
_BINARY = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Reply:
    """A response; ``parts`` are the pieces of its body."""

    parts: Sequence[bytes | memoryview] = ()
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


def json_reply(value: Any, status: int = 200) -> Reply:
    """Returns a response whose body is JSON."""
    return Reply((text_of(value).encode(),), status)


def infer_reply(answer: InferAnswer, request: InferRequest) -> Reply:
    """Returns a model's answer with its outputs in the form that the client requests.

    Raises as ``data_of`` does.
    """
    message = answer.message
    outputs: list[str] = []
    binary: list[bytes | memoryview] = []
    for output, content in zip(message.outputs, answer.raw, strict=True):
        item: dict[str, Any] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": list(output.shape),
        }
        data = ""
        if REGION in output.parameters:
            pass  # holds the elements; Triton's client accepts no parameter other than that of binary data
        elif request.wants_binary(output.name):
            item["parameters"] = {BINARY_SIZE: len(content)}
            binary.append(content)
        else:
            data = f',"data":{list_text(data_of(content, output.datatype, output.name))}'
        outputs.append(f"{text_of(item)[:-1]}{data}}}")
    head: dict[str, Any] = {"model_name": message.model_name, "model_version": message.model_version}
    if message.id:
        head["id"] = message.id
    head["parameters"] = _values(message.parameters)
    text = f'{text_of(head)[:-1]},"outputs":[{",".join(outputs)}]}}'.encode()
    if not binary:
        return Reply((text,))
    return Reply((text, *binary), 200, _BINARY, ((HEADER_LENGTH, str(len(text))),))


def json_bytes(answer: InferAnswer, request: InferRequest) -> int:
    """Returns how many bytes of an answer become JSON, which has several times as many."""
    pairs = zip(answer.message.outputs, answer.raw, strict=True)
    return sum(len(content) for output, content in pairs if not request.wants_binary(output.name))


def _values(parameters: Any) -> dict[str, Any]:
    return {key: _value(parameter) for key, parameter in parameters.items()}


def _value(parameter: pb.InferParameter) -> Any:
    chosen = parameter.WhichOneof("parameter_choice")
    return None if chosen is None else getattr(parameter, chosen)
