"""Inputs of ONNX models, read from the file alone: neither a framework nor the weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap
from pathlib import Path

from inferometer.agent.artifacts.onnx_files import locations, mapped, message_fields
from inferometer.agent.artifacts.signature import InputSignature, ModelSignature
from inferometer.agent.artifacts.urls import shown
from inferometer.manifests.errors import ArtifactError, printable

# The numbers of the fields in onnx.proto.
_GRAPH = 7
_INITIALIZER, _INPUT, _SPARSE_INITIALIZER = 5, 11, 15
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
"""Where a message begins and ends."""


def read_onnx_signature(graph: Path) -> ModelSignature:
    """Returns the inputs of an ``.onnx`` file, and the file beside it that has its weights, if there is one.

    Raises:
        ArtifactError: It is not an ONNX model, or takes its weights from several files, or from elsewhere.
    """
    with mapped(graph) as content:
        graphs = list(_parts(content, (0, len(content)), _GRAPH))
        if not graphs:
            raise ValueError("it has no graph")
        inputs = tuple(_inputs(content, graphs[-1]))  # as protobuf, the last one counts
        others = sorted(set(locations(content)))
    if not others:
        return ModelSignature(inputs, graph)
    if len(others) > 1 or "/" in others[0] or "\\" in others[0] or others[0] in {"", ".", ".."}:
        named = ", ".join(map(shown, others[:_SHOWN_FILES]))
        more = f" and {len(others) - _SHOWN_FILES} more" if len(others) > _SHOWN_FILES else ""
        raise ArtifactError(f"{graph}: takes its weights from {named}{more}; accepted: one file beside it")
    return ModelSignature(inputs, graph, graph.parent / others[0])


def _inputs(content: mmap, graph: _Place) -> Iterator[InputSignature]:
    """Yields the inputs of the graph; in older files, the weights are inputs too."""
    weights = {_text(content, place, _TENSOR_NAME) for place in _parts(content, graph, _INITIALIZER)}
    for sparse in _parts(content, graph, _SPARSE_INITIALIZER):
        weights |= {_text(content, place, _TENSOR_NAME) for place in _parts(content, sparse, _SPARSE_VALUES)}
    for place in _parts(content, graph, _INPUT):
        if _text(content, place, _NAME) not in weights:
            yield _input(content, place)


def _input(content: mmap, place: _Place) -> InputSignature:
    """Returns an input; for one that is not a tensor, such as a sequence, the name alone."""
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
    """Yields the positions of a field's messages within a message."""
    for number, begin, end, value in message_fields(content, *place):
        if number == wanted and value is None:
            yield begin, end


def _text(content: mmap, place: _Place, wanted: int) -> str:
    """Returns the text of a field; empty if there is none."""
    found = [content[begin:end] for begin, end in _parts(content, place, wanted)]
    return found[-1].decode() if found else ""
