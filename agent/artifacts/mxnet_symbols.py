"""MXNet's symbol files: the parameters that belong to one, and its inputs, read without MXNet."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from inferometer.agent.artifacts.files import InputSignature
from inferometer.manifests.errors import ArtifactError, one_line, printable

PARAMETERS = ".params"
_MAX_BYTES = 256 * 1024 * 1024
_SYMBOL = re.compile(r"(-symbol)?\.json$")
_EPOCH = re.compile(r"-\d{4}$")
_SHAPE = re.compile(r"[(\[][-\d\s,]*[)\]]|None", re.ASCII)
_SIZE = re.compile(r"-?\d+", re.ASCII)
_DTYPES = {
    "0": "float32",
    "1": "float64",
    "2": "float16",
    "3": "uint8",
    "4": "int32",
    "5": "int8",
    "6": "int64",
}
_FAILURES = (LookupError, TypeError, ValueError, AttributeError, RecursionError)

# operators that take the address of a function, call code in Python, or read a file, and their gradients
_REFUSED = re.compile(
    r"_Native|_NDArray|_CustomFunction|_CachedOp\w*|(_npi_)?Custom|(_npi)?_cvimread|\w*backward\w*"
)

Shapes = Mapping[str, Sequence[int]]
"""The shapes of parameters, by name."""


def find_symbol(path: Path) -> tuple[Path, Path | None, str | None]:
    """Returns a symbol's file and its parameter file, given either of them, and a note on the choice.

    Of several parameter files, the one with the highest epoch is returned; None if there is none.

    Raises:
        ArtifactError: The folder of the parameter file contains no symbol.
    """
    name = path.name
    if name.casefold().endswith(PARAMETERS):
        stem = _EPOCH.sub("", name[: -len(PARAMETERS)])
        for symbol in (f"{stem}-symbol.json", f"{stem}.json"):
            if (path.parent / symbol).is_file():
                return path.parent / symbol, path, None
        raise ArtifactError(f"{path}: has no symbol beside it; its name would be {stem}-symbol.json")
    stem = _SYMBOL.sub("", name)
    pattern = f"{glob.escape(stem)}-[0-9][0-9][0-9][0-9]{PARAMETERS}"
    found = sorted(path.parent.glob(pattern)) or list(path.parent.glob(f"{glob.escape(stem)}{PARAMETERS}"))
    if not found:
        return path, None, None
    note = f"of {len(found)} files of parameters, {found[-1].name}" if len(found) > 1 else None
    return path, found[-1], note


def symbol_stem(graph: Path) -> str:
    """Returns the stem that the file names of a symbol and of its parameters share."""
    return _SYMBOL.sub("", graph.name)


def symbol_inputs(graph: Path, parameters: Shapes) -> tuple[InputSignature, ...]:
    """Returns the inputs of a symbol: its variables that are neither parameters nor labels for training.

    An input has the shape that the variable declares. Otherwise, its channels (for a convolution over images)
    or features (for a fully connected layer) follow from the weight of the first operator that uses it.

    Raises:
        ArtifactError: The file is not a symbol.
    """
    try:
        return tuple(_inputs(_read(graph)["nodes"], parameters))
    except _FAILURES as error:
        raise ArtifactError(f"{graph}: is not an MXNet symbol: {one_line(error)}") from error


def symbol_text(graph: Path) -> str:
    """Returns a symbol as text, so that MXNet's parser reads exactly what was checked.

    Raises:
        ArtifactError: The file is not a symbol, or contains an operator that could run code or read files.
    """
    return json.dumps(_read(graph), ensure_ascii=False)


def _read(graph: Path) -> Mapping[str, Any]:
    try:
        if graph.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        document = json.loads(graph.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise TypeError("it is not an object")
    except OSError as error:
        raise ArtifactError(f"{graph}: cannot be read: {error.strerror or error}") from error
    except _FAILURES as error:
        raise ArtifactError(f"{graph}: is not an MXNet symbol: {one_line(error)}") from error
    for name in _operators(document):
        if _REFUSED.fullmatch(name):
            raise ArtifactError(
                f"{graph}: uses the operator {name}, which could run code or read files; a symbol may not"
            )
    return document


def _operators(document: object) -> Iterator[str]:
    """Yields the names of all operators, including those in subgraphs."""
    left = [document]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            left += part.values()
            if isinstance(name := part.get("op"), str):
                yield name
        elif isinstance(part, list):
            left += part


def _inputs(nodes: Sequence[Mapping[str, Any]], parameters: Shapes) -> Iterator[InputSignature]:
    for place, node in enumerate(nodes):
        name = node["name"]
        if node["op"] != "null" or name in parameters or name.endswith("_label"):
            continue
        attributes = node.get("attrs") or node.get("attr") or {}
        shape = _shape(attributes.get("__shape__")) or _consumed_shape(place, nodes, parameters)
        yield InputSignature(printable(name), _DTYPES.get(attributes.get("__dtype__", "")), shape)


def _shape(text: str | None) -> tuple[int | None, ...] | None:
    """Returns the shape that a variable's attribute specifies, in which 0 and -1 mean an open size."""
    if text and not _SHAPE.fullmatch(text):
        raise ValueError(f"a variable has the shape {printable(text)}")
    sizes = map(int, _SIZE.findall(text or ""))
    return tuple(size if size > 0 else None for size in sizes) or None


def _consumed_shape(
    place: int, nodes: Sequence[Mapping[str, Any]], parameters: Shapes
) -> tuple[int | None, ...] | None:
    """Returns the shape of a variable, as far as the first operators that use it determine it."""
    for node in nodes:
        taken = [each[0] for each in node["inputs"][:2]]
        if len(taken) < 2 or taken[0] != place:
            continue
        weight = parameters.get(nodes[taken[1]]["name"], ())
        attributes = node.get("attrs") or node.get("attr") or {}
        if node["op"] == "FullyConnected" and len(weight) == 2:
            return None, weight[1]
        if node["op"] == "Convolution" and len(weight) == 4 and attributes.get("layout", "NCHW") == "NCHW":
            return None, weight[1] * int(attributes.get("num_group", 1)), None, None
    return None
