"""A user's file that holds an architecture: it is hashed, executed as a module of its own, and built from."""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.util
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from manifests.errors import ArtifactError

_REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class ArchitectureFile:
    """A Python file with a class that implements an architecture.

    What is executed is the content that was read, and so what the checksum is of. No bytecode is read or
    written, and the file's folder is not searched for modules.

    Attributes:
        path: The file.
        content: What it holds.
    """

    path: Path
    content: bytes

    @classmethod
    def read(cls, path: Path) -> ArchitectureFile:
        """Reads a file and executes nothing.

        Raises:
            ArtifactError: It cannot be read.
        """
        try:
            return cls(path, path.read_bytes())
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from error

    @property
    def checksum(self) -> str:
        """``sha256:…`` of the content."""
        return f"sha256:{hashlib.sha256(self.content).hexdigest()}"

    def build(self, name: str) -> Any:
        """Executes the file and builds what its class ``implements`` under a name; case does not matter.

        Raises:
            ArtifactError: The file fails, or has no such class, or several.
        """
        try:
            found = self._implementing(self._execute(), name)
            return found()
        except ArtifactError:
            raise
        except (Exception, SystemExit) as error:  # a user's code may raise whatever there is
            raise ArtifactError(f"{self._place(error)}: {_reason(error)}") from error

    def _execute(self) -> ModuleType:
        """Runs the file as a module that cannot be imported by a name of the user's."""
        name = f"inferscope_architecture_{hashlib.sha256(self.content).hexdigest()[:16]}"
        spec = importlib.util.spec_from_file_location(name, self.path, loader=_Loader(self))
        if spec is None or spec.loader is None:
            raise ArtifactError(f"{self.path}: is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where dataclasses look for the types of their fields
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    def _implementing(self, module: ModuleType, name: str) -> type:
        """The one class of the module, not one that it imports, that implements the name."""
        classes = {
            v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__
        }
        found = [c for c in classes if name.casefold() in {n.casefold() for n in _implemented(c)}]
        if len(found) > 1:
            names = " and ".join(sorted(c.__name__ for c in found))
            raise ArtifactError(f'{self.path}: the classes {names} all implement "{name}"; keep one')
        if not found:
            others = sorted(f'{c.__name__} implements "{n}"' for c in classes for n in _implemented(c))
            more = f"; {', '.join(others)}" if others else ""
            raise ArtifactError(f'{self.path}: holds no class with implements = "{name}"{more}')
        return found[0]

    def _place(self, error: BaseException) -> str:
        """The file, and the last of its lines that an error came through."""
        if isinstance(error, SyntaxError) and error.filename == str(self.path):
            line = error.lineno
        else:
            frames = traceback.extract_tb(error.__traceback__)
            line = next((f.lineno for f in reversed(frames) if f.filename == str(self.path)), None)
        return f"{self.path}, line {line}" if line else str(self.path)


class _Loader(importlib.abc.SourceLoader):
    """Gives the import system the content that was read, without a time of change: nothing is cached."""

    def __init__(self, file: ArchitectureFile) -> None:
        self._file = file

    def get_filename(self, fullname: str) -> str:
        return str(self._file.path)

    def get_data(self, path: str | bytes) -> bytes:
        return self._file.content


def _implemented(found: type) -> tuple[str, ...]:
    """What a class itself says that it implements, not what it inherits."""
    names = vars(found).get("implements", ())
    return tuple(map(str, names)) if isinstance(names, tuple | list) else (str(names),)


def _reason(error: BaseException) -> str:
    """The kind of the error and its message, in one line."""
    message = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text if len(text) <= _REASON_CHARACTERS else text[: _REASON_CHARACTERS - 1] + "…"
