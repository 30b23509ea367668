"""External data of ONNX models: the other files that a ``.onnx`` file takes its weights from."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inferometer.agent.artifacts.urls import shown
from inferometer.manifests.errors import ArtifactError

# The fields of onnx.proto that hold messages, by number: those that lead to tensors, and no others.
_MESSAGES = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorProto": {13: "external_data"},
}
_ENTRY = "external_data"
_KEY, _VALUE = 1, 2
_LOCATION = b"location"
_MAX_TAG = 2**32 - 1
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


def check_external_data(graph: Path, weights: Path | None) -> None:
    """Checks that a graph reads no file but itself and the one that its manifest names for the weights.

    Raises:
        ArtifactError: It reads another file, which has no checksum, or it is not an ONNX model.
    """
    with mapped(graph) as content:
        others = {each: (graph.parent / each).resolve() for each in locations(content)}
    named = weights and weights.resolve()
    if refused := sorted(name for name, path in others.items() if path != named):
        raise ArtifactError(
            f"{graph}: takes its weights from {', '.join(map(shown, refused))}; accepted: one file beside "
            "it, which the manifest names as weights_path, with its checksum"
        )


@contextmanager
def mapped(graph: Path) -> Iterator[mmap.mmap]:
    """Maps an ``.onnx`` file into memory; errors in its messages within the context raise ArtifactError."""
    try:
        with graph.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content
    except (ValueError, IndexError) as error:
        reason = error if graph.stat().st_size else "it is empty"
        raise ArtifactError(f"{graph}: is no ONNX model: {reason}") from error
    except OSError as error:
        raise ArtifactError(f"{graph}: cannot be read: {error.strerror or error}") from error


def locations(content: mmap.mmap) -> Iterator[str]:
    """Yields the locations of all external tensors, found without reading the tensors in the file."""
    waiting = [("ModelProto", 0, len(content))]
    while waiting:
        message, start, end = waiting.pop()
        keys, values = set(), []
        for number, begin, stop, value in message_fields(content, start, end):
            if value is not None:
                continue
            if message == _ENTRY and number == _KEY:
                keys.add(content[begin:stop])
            elif message == _ENTRY and number == _VALUE:
                values.append(content[begin:stop])
            elif inner := _MESSAGES.get(message, {}).get(number):
                waiting.append((inner, begin, stop))
        if _LOCATION in keys:  # before its value or after it
            yield from (value.decode() for value in values)


def message_fields(content: mmap.mmap, position: int, end: int) -> Iterator[tuple[int, int, int, int | None]]:
    """Yields the fields of a message: the number, where the content begins and ends, and a whole number.

    The last is None for fields with a length. Fields of 4 and of 8 bytes are left out.

    Raises:
        ValueError: The message is damaged.
        IndexError: The same, at the end of the file.
    """
    while position < end:
        tag, position = _varint(content, position)
        if tag > _MAX_TAG:  # of which readers of protobuf may take the lower bits only
            raise ValueError("a field of too high a number")
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, after = _varint(content, position)
            if after <= end:
                yield number, position, after, value
            position = after
        elif wire_type in {_EIGHT_BYTES, _FOUR_BYTES}:
            position += 8 if wire_type == _EIGHT_BYTES else 4
        elif wire_type == _LENGTH:
            length, begin = _varint(content, position)
            position = begin + length
            if position <= end:
                yield number, begin, position, None
        else:
            raise ValueError(f"a field of wire type {wire_type}")
        if position > end:
            raise ValueError("it is truncated")


def _varint(content: mmap.mmap, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift >= 70:
            raise ValueError("a number of more than ten bytes")
