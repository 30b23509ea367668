"""The frameworks that an agent can run models in, and which of them are installed.

To ask whether a framework is installed, and in which version, imports nothing of it.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from manifests.errors import FrameworkUnavailableError, UnknownFrameworkError

if TYPE_CHECKING:  # a listing of frameworks needs no NumPy
    from agent.predictor import Predictor

ENTRY_POINTS = "inferscope.frameworks"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FrameworkEntry:
    """A framework.

    Attributes:
        name: As manifests and flags write it.
        predictor: Its predictor as ``"module:Class"``, imported when a model is opened.
        distributions: The Python distributions that hold the framework; the first installed one counts.
        install: The command that installs it.
    """

    name: str
    predictor: str
    distributions: tuple[str, ...]
    install: str

    @property
    def installed_version(self) -> str | None:
        """The installed version, or None."""
        for distribution in self.distributions:
            try:
                return metadata.version(distribution)
            except metadata.PackageNotFoundError:
                continue
        return None

    def require_installed(self) -> str:
        """Returns the installed version.

        Raises:
            FrameworkUnavailableError: The framework is not; the message has the command that installs it.
        """
        if (version := self.installed_version) is None:
            raise FrameworkUnavailableError(
                f"framework {self.name} is not installed; install it with: {self.install}"
            )
        return version

    def load(self) -> type[Predictor]:
        """Imports the predictor.

        Raises:
            FrameworkUnavailableError: The framework is not installed, or fails to import.
        """
        from agent.predictor import Predictor

        self.require_installed()
        module, _, attribute = self.predictor.partition(":")
        try:
            predictor = getattr(importlib.import_module(module), attribute)
        except (ImportError, OSError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise FrameworkUnavailableError(
                f"framework {self.name} {self.installed_version} cannot be imported: {reason}"
            ) from error
        if not (isinstance(predictor, type) and issubclass(predictor, Predictor)):
            raise FrameworkUnavailableError(f"framework {self.name}: {self.predictor} is no Predictor")
        return predictor


BUILTIN = (
    FrameworkEntry(
        "PyTorch",
        "agent.frameworks.pytorch:PyTorchPredictor",
        ("torch",),
        "pip install 'inferscope[pytorch]'",
    ),
    FrameworkEntry(
        "MXNet",
        "agent.frameworks.mxnet:MXNetPredictor",
        ("mxnet", "mxnet-cu112", "mxnet-cu110", "mxnet-cu102"),
        "pip install 'inferscope[mxnet]'",
    ),
    FrameworkEntry(
        "ONNXRuntime",
        "agent.frameworks.onnxruntime:ONNXRuntimePredictor",
        ("onnxruntime", "onnxruntime-gpu"),
        "pip install 'inferscope[onnxruntime]'",
    ),
)


class Registry:
    """The frameworks by name, in the order in which they are preferred.

    Args:
        entries: The frameworks; of two with the same name the first counts.
    """

    def __init__(self, entries: Iterable[FrameworkEntry] = BUILTIN) -> None:
        self._entries: dict[str, FrameworkEntry] = {}
        for entry in entries:
            self._entries.setdefault(entry.name.casefold(), entry)

    @classmethod
    def discover(cls) -> Registry:
        """The program's own frameworks, and those that installed packages announce.

        A package announces one through an entry point in the group ``inferscope.frameworks`` whose value is a
        ``FrameworkEntry``. One that cannot be loaded, or is something else, is logged and left out.
        """
        announced = []
        for point in metadata.entry_points(group=ENTRY_POINTS):
            try:
                entry = point.load()
            except (ImportError, AttributeError) as error:
                _log.warning("left out framework entry point %s: %s", point.name, error)
                continue
            if isinstance(entry, FrameworkEntry):
                announced.append(entry)
            else:
                _log.warning(
                    "left out framework entry point %s: %s is no FrameworkEntry", point.name, point.value
                )
        return cls((*BUILTIN, *announced))

    @property
    def entries(self) -> tuple[FrameworkEntry, ...]:
        """All frameworks, installed or not."""
        return tuple(self._entries.values())

    @property
    def versions(self) -> Mapping[str, str | None]:
        """The installed version of each framework by name; None for one that is not installed."""
        return {entry.name: entry.installed_version for entry in self.entries}

    def find(self, name: str) -> FrameworkEntry:
        """Returns the framework of a name; case does not matter.

        Raises:
            UnknownFrameworkError: There is none.
        """
        try:
            return self._entries[name.strip().casefold()]
        except KeyError:
            raise UnknownFrameworkError.of(name, (entry.name for entry in self.entries)) from None
