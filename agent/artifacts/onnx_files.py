"""ONNX model files: their inputs, and the other files from which a ``.onnx`` file loads its weights.

Only the file itself is read: neither a framework nor the weights are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from mmap import ACCESS_READ, mmap
from pathlib import Path

from inferometer.agent.artifacts.files import InputSignature, ModelSignature
from inferometer.agent.artifacts.locations import shown
from inferometer.manifests.errors import ArtifactError, printable

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
    """Checks that a graph reads only itself and the file that its manifest names for the weights.

    Raises:
        ArtifactError: It is not an ONNX model, or reads another file, which would have no checksum.
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
def mapped(graph: Path) -> Iterator[mmap]:
    """Maps an ``.onnx`` file into memory; parse errors inside the context are raised as ArtifactError."""
    try:
        with graph.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            yield content
    except (ValueError, IndexError) as error:
        reason = error if graph.stat().st_size else "it is empty"
        raise ArtifactError(f"{graph}: is not an ONNX model: {reason}") from error
    except OSError as error:
        raise ArtifactError(f"{graph}: cannot be read: {error.strerror or error}") from error


def locations(content: mmap) -> Iterator[str]:
    """Yields the locations of all external tensors, without reading the tensors in the file itself."""
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


def message_fields(content: mmap, position: int, end: int) -> Iterator[tuple[int, int, int, int | None]]:
    """Yields each field of a message: its number, the start and end of its content, and its integer value.

    The value is None for length-delimited fields. Fields of 4 or 8 bytes are skipped. Raises ValueError or,
    at the end of the file, IndexError if the message is damaged.
    """
    while position < end:
        tag, position = _varint(content, position)
        if tag > _MAX_TAG:  # of which readers of protobuf may take the lower bits only
            raise ValueError("a field number that is too high")
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


def _varint(content: mmap, position: int) -> tuple[int, int]:
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


# The numbers of the fields in onnx.proto.
_GRAPH = 7
_NODE, _INITIALIZER, _INPUT, _OUTPUT, _SPARSE_INITIALIZER = 1, 5, 11, 12, 15
_MADE, _OPERATOR, _ATTRIBUTE, _INTEGERS, _STRINGS = 2, 4, 5, 8, 9
_CLASSES = frozenset({"classlabels_strings", "classlabels_ints", "classlabels_int64s"})
_NAME, _TYPE, _TENSOR_NAME, _SPARSE_VALUES = 1, 2, 8, 1
_TENSOR_TYPE, _ELEMENT_TYPE, _SHAPE, _DIMENSION, _SIZE = 1, 1, 2, 1, 1
_ELEMENT_TYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
}
_LARGEST_SIZE = 2**31
_SHOWN_FILES = 3

_Place = tuple[int, int]
"""The positions at which a message begins and ends."""


def read_onnx_signature(graph: Path) -> ModelSignature:
    """Returns the inputs and outputs of an ``.onnx`` file, and the weights file beside it, if there is one.

    Raises:
        ArtifactError: It is not an ONNX model, or its weights are in several files or in another folder.
    """
    with mapped(graph) as content:
        graphs = list(_parts(content, (0, len(content)), _GRAPH))
        if not graphs:
            raise ValueError("it has no graph")
        inputs = tuple(_inputs(content, graphs[-1]))  # as protobuf, the last one counts
        outputs = tuple(_input(content, place) for place in _parts(content, graphs[-1], _OUTPUT))
        nodes = list(_parts(content, graphs[-1], _NODE))
        operators = {_text(content, node, _MADE): _text(content, node, _OPERATOR) for node in nodes}
        classes = next(filter(None, (_classes(content, node) for node in nodes)), ())
        others = sorted(set(locations(content)))
    found = ModelSignature(inputs, graph, outputs=outputs, operators=operators, classes=classes)
    if not others:
        return found
    if len(others) > 1 or "/" in others[0] or "\\" in others[0] or others[0] in {"", ".", ".."}:
        named = ", ".join(map(shown, others[:_SHOWN_FILES]))
        more = f" and {len(others) - _SHOWN_FILES} more" if len(others) > _SHOWN_FILES else ""
        raise ArtifactError(f"{graph}: takes its weights from {named}{more}; accepted: one file beside it")
    return replace(found, weights=graph.parent / others[0])


def _classes(content: mmap, node: _Place) -> tuple[str, ...]:
    """Returns the names of the classes in a node of ``ai.onnx.ml``, such as ``ZipMap``; empty for others."""
    for place in _parts(content, node, _ATTRIBUTE):
        if _text(content, place, _NAME) in _CLASSES:
            texts = [content[begin:end].decode() for begin, end in _parts(content, place, _STRINGS)]
            found = [value for number, _, _, value in message_fields(content, *place) if number == _INTEGERS]
            numbers = [value - (value >> 63 << 64) for value in found if value is not None]
            if texts or numbers:
                return tuple(texts or map(str, numbers))
    return ()


def _inputs(content: mmap, graph: _Place) -> Iterator[InputSignature]:
    """Yields the graph's inputs without its weights, which older files declare as inputs too."""
    weights = {_text(content, place, _TENSOR_NAME) for place in _parts(content, graph, _INITIALIZER)}
    for sparse in _parts(content, graph, _SPARSE_INITIALIZER):
        weights |= {_text(content, place, _TENSOR_NAME) for place in _parts(content, sparse, _SPARSE_VALUES)}
    for place in _parts(content, graph, _INPUT):
        if _text(content, place, _NAME) not in weights:
            yield _input(content, place)


def _input(content: mmap, place: _Place) -> InputSignature:
    """Returns an input; only its name is set if it is not a tensor but, for example, a sequence."""
    element_type: str | None = None
    shape: tuple[int | None, ...] | None = None
    for kind in _parts(content, place, _TYPE):
        for tensor in _parts(content, kind, _TENSOR_TYPE):
            for number, begin, end, value in message_fields(content, *tensor):
                if number == _ELEMENT_TYPE and value is not None:
                    element_type = _ELEMENT_TYPES.get(value, f"of ONNX's element type {value}")
                elif number == _SHAPE and value is None:
                    shape = tuple(_size(content, one) for one in _parts(content, (begin, end), _DIMENSION))
    return InputSignature(printable(_text(content, place, _NAME)), element_type, shape)


def _size(content: mmap, dimension: _Place) -> int | None:
    """Returns the size of a dimension; None if it is named or has no value."""
    sizes = [value for number, _, _, value in message_fields(content, *dimension) if number == _SIZE]
    size = sizes[-1] if sizes else None
    return size if size is not None and 0 < size < _LARGEST_SIZE else None


def _parts(content: mmap, place: _Place, wanted: int) -> Iterator[_Place]:
    """Yields the positions of the messages in a field of a message."""
    for number, begin, end, value in message_fields(content, *place):
        if number == wanted and value is None:
            yield begin, end


def _text(content: mmap, place: _Place, wanted: int) -> str:
    """Returns the text in a field; empty if the field is missing."""
    found = [content[begin:end] for begin, end in _parts(content, place, wanted)]
    return found[-1].decode() if found else ""
