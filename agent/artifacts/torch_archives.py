"""Reads archives written by PyTorch as data: their kind, traced inputs, and exported programs.

Nothing here imports PyTorch or reads anything that ``torch.export.load`` would unpickle or evaluate.
"""

from __future__ import annotations

import json
import pickle  # only for a reader that builds nothing but shapes
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from io import BytesIO
from pathlib import Path
from typing import Any

from inferometer.agent.artifacts.files import InputSignature
from inferometer.manifests.errors import ArtifactError, explained, one_line

_MAX_JSON_BYTES = 256 * 1024 * 1024
_MAX_PICKLE_BYTES = 1024 * 1024
_MAX_MEMBERS = 100_000
_PICKLE_BEGINS = b"\x80"
_DAMAGED = (ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, TypeError, ValueError)
_UNREADABLE = (*_DAMAGED, zipfile.BadZipFile, RuntimeError)
_PICKLE_FAILURES = (*_DAMAGED, pickle.PickleError, AssertionError, RecursionError, struct.error)
_STORAGES = {
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "ByteStorage": "uint8",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "DoubleStorage": "float64",
    "BoolStorage": "bool",
    "BFloat16Storage": "bfloat16",
    "CharStorage": "int8",
    "ShortStorage": "int16",
}


class TorchFile(Enum):
    """The kinds of files that PyTorch writes."""

    TORCHSCRIPT = "TorchScript"
    PROGRAM = "an exported program"
    OLD_PROGRAM = "an exported program of an older PyTorch, with pickled weights"
    COMPILED = "a program compiled by AOTInductor"
    PICKLE = "pickled"
    OTHER = "none of these"


class TorchArchive:
    """The members of a zip archive, named without its top folder; only uncompressed members are read.

    Created by ``open_archive``.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        members = archive.infolist()
        if len(members) > _MAX_MEMBERS:
            raise ValueError(f"it has {len(members)} members; at most {_MAX_MEMBERS} are accepted")
        self.path = path
        self._archive = archive
        self._members = {each.filename.partition("/")[2]: each for each in members}
        self._top = {each.filename for each in members}

    @property
    def kind(self) -> TorchFile:
        """The kind of the archive."""
        names = self._members
        if "serialized_exported_program.json" in self._top:
            return TorchFile.OLD_PROGRAM
        if any(name.startswith("data/aotinductor/") for name in names):
            return TorchFile.COMPILED
        if "archive_format" in names and any(name.startswith("models/") for name in names):
            payload = [name for name in names if name.startswith(("data/weights/", "data/constants/"))]
            pickled = any(name.endswith(".pt") for name in payload)
            return TorchFile.OLD_PROGRAM if pickled else TorchFile.PROGRAM
        if "constants.pkl" in names and any(name.startswith("code/") for name in names):
            return TorchFile.TORCHSCRIPT
        return TorchFile.PICKLE if "data.pkl" in names else TorchFile.OTHER

    def __contains__(self, name: str) -> bool:
        """Returns whether the archive contains a member with this name."""
        return name in self._members

    def read(self, name: str, max_bytes: int | None = None) -> bytes:
        """Returns the content of a member; raises ValueError if it is missing, compressed or too large."""
        member = self._members.get(name)
        if member is None:
            raise ValueError(f"it has no {name}")
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is compressed, which PyTorch does not write")
        if max_bytes is not None and member.file_size > max_bytes:
            raise ValueError(f"{name} has {member.file_size} bytes; at most {max_bytes} are accepted")
        return self._archive.read(member)

    def json(self, name: str) -> Any:
        """Parses a member as JSON; raises ValueError like ``read``, or if it is not JSON."""
        return json.loads(self.read(name, _MAX_JSON_BYTES))


@contextmanager
def open_archive(path: Path, what: str) -> Iterator[TorchArchive]:
    """Opens an archive; errors inside the context become an ArtifactError that names ``what``."""
    try:
        with explained(ArtifactError, f"{path}: cannot be read"), zipfile.ZipFile(path) as archive:
            yield TorchArchive(path, archive)
    except _UNREADABLE as error:
        raise ArtifactError(f"{path}: is no {what} that can be read: {one_line(error)}") from error


def torch_file(path: Path) -> TorchFile:
    """Returns the kind of a file according to its content; raises ArtifactError if it cannot be read."""
    with explained(ArtifactError, f"{path}: cannot be read"):
        with path.open("rb") as file:
            if file.read(1) == _PICKLE_BEGINS:
                return TorchFile.PICKLE
        if not zipfile.is_zipfile(path):
            return TorchFile.OTHER
    with open_archive(path, "archive of PyTorch") as archive:
        return archive.kind


def traced_inputs(path: Path) -> tuple[InputSignature, ...] | None:
    """Returns the inputs with which a TorchScript archive was traced; None if it contains none.

    They are named ``input0``, ``input1``, …: TorchScript stores only the names of the program's variables.
    Raises ArtifactError if the file is not an archive.
    """
    with open_archive(path, "TorchScript archive") as archive:
        if "traced_inputs.pkl" not in archive:
            return None
        content = archive.read("traced_inputs.pkl", _MAX_PICKLE_BYTES)
    try:
        inputs = _ShapeReader(BytesIO(content)).load()["forward"]
    except _PICKLE_FAILURES:  # the shapes are then not known
        return None
    if not isinstance(inputs, list | tuple) or not all(isinstance(each, InputSignature) for each in inputs):
        return None
    return tuple(InputSignature(f"input{n}", e.element_type, e.shape) for n, e in enumerate(inputs))


class _ShapeReader(pickle._Unpickler):
    """Reads the shapes and dtypes of pickled tensors; it resolves no class, so it can run no other code.

    It uses Python's own unpickler, because the C version allocates as much memory as the file requests.
    """

    def find_class(self, module: str, name: str) -> Any:
        makers: Mapping[tuple[str, str], Callable[..., Any]] = {
            ("torch._utils", "_rebuild_tensor_v2"): _shape_of,
            ("torch.jit._pickle", "restore_type_tag"): lambda value, _: value,
            ("collections", "OrderedDict"): dict,
        }
        if (module, name) in makers:
            return makers[module, name]
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        return pid[1]  # the element type of the storage, whose content is not read


def _shape_of(element_type: object, _offset: object, shape: object, *_: object) -> InputSignature:
    if not isinstance(element_type, str) or not isinstance(shape, tuple):
        raise pickle.UnpicklingError("no tensor")
    return InputSignature("", element_type, tuple(map(int, shape)))
