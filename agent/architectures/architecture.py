"""The architecture: a model built in code, in the form that a predictor receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Builder(Protocol):
    """Builds a model of the framework's own kind: a ``torch.nn.Module``, a ``gluon.HybridBlock``."""

    def __call__(self, *, initialize: bool) -> Any:
        """Builds the model.

        Without ``initialize`` the weights of a file replace all of its own, which it may leave undefined.

        Raises:
            ArtifactError: The model cannot be built; the message names what is missing, or where the code
                failed.
        """


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model in code, found by its name; none of its code has been imported or run yet.

    Attributes:
        name: As the manifest writes it.
        build: Imports what is needed and builds the model.
        checksum: ``sha256:…`` of the user's file that defines it; None for architectures of the program and
            of packages.
        versions: The installed version of the package that defines it, by the package's name.
    """

    name: str
    build: Builder
    checksum: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
