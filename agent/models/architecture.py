"""An architecture: a model that is built in code, as a predictor gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Builder(Protocol):
    """Builds a model."""

    def __call__(self, *, initialize: bool) -> Any:
        """Builds it.

        Args:
            initialize: Whether its weights are used. Otherwise a file's weights replace them all, so that the
                builder may leave them undefined.

        Returns:
            The framework's own kind of model: a ``torch.nn.Module``, a ``gluon.HybridBlock``.

        Raises:
            ArtifactError: It cannot be built; the message says what is missing, or where the code failed.
        """


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model in code, found by its name, of which nothing has been imported or run yet.

    Attributes:
        name: As the manifest writes it.
        build: Imports what is needed and builds the model.
        checksum: ``sha256:…`` of the file that it is built from; None for the program's own and a package's.
        versions: The installed version of the package that it is from, by the package's name.
    """

    name: str
    build: Builder
    checksum: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
