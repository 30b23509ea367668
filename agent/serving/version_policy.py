"""Which versions of a model clients of the Open Inference Protocol see, as Triton's ``version_policy``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from packaging.utils import canonicalize_version
from packaging.version import InvalidVersion, Version

from inferometer.manifests.errors import ConfigurationError, one_line


class VersionChoice(str, Enum):
    """The kinds of policy."""

    ALL = "all"
    LATEST = "latest"
    SPECIFIC = "specific"


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Serves every version of a model, the ``latest`` ones, or ``specific`` ones.

    Attributes:
        choice: The kind.
        latest: How many of the highest versions ``LATEST`` serves.
        specific: The versions that ``SPECIFIC`` serves; ``1`` and ``1.0`` are the same.
    """

    choice: VersionChoice = VersionChoice.ALL
    latest: int = 1
    specific: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> VersionPolicy:
        """Reads ``all``, ``latest:N`` or ``specific:V,V``; raises ConfigurationError for other texts."""
        kind, _, rest = text.strip().partition(":")
        if kind == VersionChoice.ALL and text.strip() == kind:
            return cls()
        if kind == VersionChoice.LATEST and re.fullmatch(r"0*[1-9][0-9]{0,8}", rest):
            return cls(VersionChoice.LATEST, latest=int(rest))
        versions = tuple(part.strip() for part in rest.split(","))
        if kind == VersionChoice.SPECIFIC and all(map(_is_version, versions)):
            return cls(VersionChoice.SPECIFIC, specific=versions)
        raise ConfigurationError(
            f'version_policy: found "{one_line(text, 60)}"; allowed: all, latest:N with N from 1 on, or '
            "specific: with versions and commas, such as specific:1,3"
        )

    def __str__(self) -> str:
        match self.choice:
            case VersionChoice.LATEST:
                return f"latest:{self.latest}"
            case VersionChoice.SPECIFIC:
                return f"specific:{','.join(self.specific)}"
        return VersionChoice.ALL.value

    def served(self, versions: Sequence[str]) -> tuple[str, ...]:
        """Returns those of a model's versions, the highest first, that are served; in the same order."""
        match self.choice:
            case VersionChoice.LATEST:
                return tuple(versions[: self.latest])
            case VersionChoice.SPECIFIC:
                wanted = set(map(canonicalize_version, self.specific))
                return tuple(v for v in versions if canonicalize_version(v) in wanted)
        return tuple(versions)


SERVE_ALL = VersionPolicy()


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except (InvalidVersion, ValueError):  # ValueError: a number too long for int
        return False
    return True
