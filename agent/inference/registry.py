"""The frameworks in which an agent can run models, and which of them are installed.

Looking up an installed version does not import the framework.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from inferometer.manifests.errors import (
    IMPORT_FAILURES,
    ConfigurationError,
    FrameworkUnavailableError,
    UnknownFrameworkError,
    one_line,
)

if TYPE_CHECKING:  # a listing of frameworks needs no NumPy
    from inferometer.agent.inference.predictor import Predictor

ENTRY_POINTS = "inferometer.frameworks"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FrameworkEntry:
    """A framework.

    Attributes:
        name: The framework's name in manifests and flags.
        predictor: Its predictor as ``"module:Class"``, imported when a model is opened.
        distributions: The Python distributions of the framework; the first installed one is used.
        install: The command that installs the framework.
        suffixes: The file suffixes of its models; see ``Predictor.signature_of_file``.
        classes: The classes of its models in memory, as ``"module.Class"``; subclasses are accepted too. See
            ``Predictor.signature_of_object``.
        trainer: Its trainer as ``"module:Class"``, imported when a model is trained; empty for none.
        companions: The function that returns the processes to run beside its ranks, as ``"module:function"``,
            without importing the framework. ``agent.training.trainer`` defines its interface. Empty for none.
        operators: The class that runs single operators, as ``"module:Class"``; empty for none.
        generator: The class that runs language models, as ``"module:Class"``, which
            ``agent.generation.opening`` calls; empty for none.
    """

    name: str
    predictor: str
    distributions: tuple[str, ...]
    install: str
    suffixes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    trainer: str = ""
    companions: str = ""
    operators: str = ""
    generator: str = ""

    @property
    def installed_version(self) -> str | None:
        """The installed version, or None."""
        for distribution in self.distributions:
            with suppress(metadata.PackageNotFoundError):
                return metadata.version(distribution)
        return None

    def require_installed(self) -> str:
        """Returns the installed version.

        Raises FrameworkUnavailableError, with the command to install the framework, if there is none.
        """
        if (version := self.installed_version) is None:
            raise FrameworkUnavailableError(
                f"framework {self.name} is not installed; install it with: {self.install}"
            )
        return version

    def load(self) -> type[Predictor]:
        """Imports the predictor.

        Raises FrameworkUnavailableError if the framework is not installed, or fails to import.
        """
        from inferometer.agent.inference.predictor import Predictor

        predictor = self.import_part(self.predictor)
        if not (isinstance(predictor, type) and issubclass(predictor, Predictor)):
            raise FrameworkUnavailableError(f"framework {self.name}: {self.predictor} is not a Predictor")
        return predictor

    def load_operators(self) -> object:
        """Imports the class that runs the framework's operators; ``agent.operators`` defines its interface.

        Raises:
            ConfigurationError: The framework cannot run single operators.
            FrameworkUnavailableError: The framework is not installed, or fails to import.
        """
        if not self.operators:
            raise ConfigurationError(f"framework {self.name} cannot run single operators")
        return self.import_part(self.operators)

    def import_part(self, place: str) -> object:
        """Imports a component for the framework, such as its ``trainer``, given as ``"module:Class"``.

        Raises:
            FrameworkUnavailableError: The framework is not installed, or fails to import.
        """
        self.require_installed()
        try:
            return resolve_name(place)
        except IMPORT_FAILURES as error:
            raise FrameworkUnavailableError(
                f"framework {self.name} {self.installed_version} cannot be imported: {one_line(error)}"
            ) from error


BUILTIN = (
    FrameworkEntry(
        "PyTorch",
        "inferometer.agent.frameworks.pytorch.predictor:PyTorchPredictor",
        ("torch",),
        "pip install 'inferometer[pytorch]'",
        suffixes=(".pt2", ".pt", ".pth", ".ts"),
        classes=("torch.nn.modules.module.Module",),
        trainer="inferometer.agent.frameworks.pytorch.trainer:PyTorchTrainer",
        operators="inferometer.agent.frameworks.pytorch.operators.runner:PyTorchOperators",
        generator="inferometer.agent.frameworks.pytorch.language_model:PyTorchLanguageModel",
    ),
    FrameworkEntry(
        "MXNet",
        "inferometer.agent.frameworks.mxnet.predictor:MXNetPredictor",
        ("mxnet", "mxnet-cu112", "mxnet-cu110", "mxnet-cu102"),
        "pip install 'inferometer[mxnet]', on Python 3.12 or older",
        suffixes=("-symbol.json", ".json", ".params"),
        classes=("mxnet.gluon.block.HybridBlock",),
        trainer="inferometer.agent.frameworks.mxnet.trainer:MXNetTrainer",
        companions="inferometer.agent.frameworks.mxnet.servers:companions",
        operators="inferometer.agent.frameworks.mxnet.operators.runner:MXNetOperators",
    ),
    FrameworkEntry(
        "ONNXRuntime",
        "inferometer.agent.frameworks.onnxruntime.predictor:ONNXRuntimePredictor",
        ("onnxruntime", "onnxruntime-gpu"),
        "pip install 'inferometer[onnxruntime]'",
        suffixes=(".onnx",),
        classes=("onnxruntime.capi.onnxruntime_inference_collection.InferenceSession",),
        operators="inferometer.agent.frameworks.onnxruntime.operators.runner:ONNXRuntimeOperators",
        generator="inferometer.agent.frameworks.onnxruntime.language_model:ONNXRuntimeLanguageModel",
    ),
)


class Registry:
    """The frameworks by name, in order of preference; of two with the same name, the first is used."""

    def __init__(self, entries: Iterable[FrameworkEntry] = BUILTIN) -> None:
        self._entries: dict[str, FrameworkEntry] = {}
        for entry in entries:
            self._entries.setdefault(entry.name.casefold(), entry)

    @classmethod
    def discover(cls) -> Registry:
        """Returns the program's own frameworks and those of plug-ins.

        A plug-in has an entry point in the group ``inferometer.frameworks`` whose value is a
        ``FrameworkEntry``. An entry point that cannot be loaded, or has another type, is logged and skipped.
        """
        announced = []
        for point in metadata.entry_points(group=ENTRY_POINTS):
            try:
                entry = point.load()
            except IMPORT_FAILURES as error:
                _log.warning("left out framework entry point %s: %s", point.name, one_line(error))
                continue
            if isinstance(entry, FrameworkEntry):
                announced.append(entry)
            else:
                _log.warning(
                    "left out framework entry point %s: %s is not a FrameworkEntry", point.name, point.value
                )
        return cls((*BUILTIN, *announced))

    @property
    def entries(self) -> tuple[FrameworkEntry, ...]:
        """All frameworks, installed or not."""
        return tuple(self._entries.values())

    @property
    def versions(self) -> Mapping[str, str | None]:
        """The installed version of each framework, by name; None if the framework is not installed."""
        return {entry.name: entry.installed_version for entry in self.entries}

    def find(self, name: str) -> FrameworkEntry:
        """Returns the framework with a name; case does not matter. Raises UnknownFrameworkError."""
        try:
            return self._entries[name.strip().casefold()]
        except KeyError:
            raise UnknownFrameworkError.of(name, (entry.name for entry in self.entries)) from None
