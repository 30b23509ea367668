"""A user's file with an architecture: hashed, executed as a module of its own, and instantiated."""

from __future__ import annotations

import hashlib
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from inferometer.manifests.errors import ArtifactError, one_line


@dataclass(frozen=True, slots=True)
class ArchitectureFile:
    """A Python file with a class that implements an architecture.

    The content that was read and hashed is what is executed. No bytecode is read or written, and the file's
    folder is not searched for modules.
    """

    path: Path
    content: bytes

    @classmethod
    def read(cls, path: Path) -> ArchitectureFile:
        """Reads a file without executing it; raises ArtifactError if it cannot be read."""
        try:
            return cls(path, path.read_bytes())
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from error

    @property
    def checksum(self) -> str:
        """``sha256:…`` of the content."""
        return f"sha256:{hashlib.sha256(self.content).hexdigest()}"

    def build(self, name: str) -> Any:
        """Executes the file and instantiates the class that ``implements`` a name; case does not matter.

        Raises:
            ArtifactError: The code fails, or the file has no such class, or several.
        """
        try:
            found = self._implementing(self._execute(), name)
            return found()
        except ArtifactError:
            raise
        except (Exception, SystemExit) as error:  # a user's code may raise anything
            raise ArtifactError(f"{self._place(error)}: {_reason(error)}") from error

    def _execute(self) -> ModuleType:
        """Runs the file as a module under a name that no user's module has."""
        name = f"inferometer_architecture_{hashlib.sha256(self.content).hexdigest()[:16]}"
        module = ModuleType(name)
        module.__file__ = str(self.path)
        sys.modules[name] = module  # where dataclasses look for the types of their fields
        try:
            code = compile(self.content, str(self.path), "exec", dont_inherit=True)
            exec(code, vars(module))  # noqa: S102 - what the user has named for that
        except BaseException:
            del sys.modules[name]
            raise
        return module

    def _implementing(self, module: ModuleType, name: str) -> type:
        """Returns the one class of the module, not one that it imports, that implements the name."""
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
        """Returns the file, and the last of its lines that an error came through."""
        if isinstance(error, SyntaxError) and error.filename == str(self.path):
            line = error.lineno
        else:
            frames = traceback.extract_tb(error.__traceback__)
            line = next((f.lineno for f in reversed(frames) if f.filename == str(self.path)), None)
        return f"{self.path}, line {line}" if line else str(self.path)


def _implemented(found: type) -> tuple[str, ...]:
    """Returns the names that a class itself declares to implement, without inherited ones."""
    names = vars(found).get("implements", ())
    return tuple(map(str, names)) if isinstance(names, tuple | list) else (str(names),)


def _reason(error: BaseException) -> str:
    """Returns the kind of the error and its message, in one line."""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return one_line(f"{type(error).__name__}: {message}" if message else type(error).__name__)
