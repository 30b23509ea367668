"""Which versions of models clients of the Open Inference Protocol see, as Triton's ``version_policy``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
            "specific: with versions and commas, such as specific:1,3; for one model NAME=POLICY"
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


@dataclass(frozen=True, slots=True)
class VersionPolicies:
    """The policy of each model.

    Attributes:
        default: That of models without one of their own.
        by_model: Those of models, by their names.
    """

    default: VersionPolicy = SERVE_ALL
    by_model: Mapping[str, VersionPolicy] = field(default_factory=dict)

    @classmethod
    def parse(cls, texts: Iterable[str]) -> VersionPolicies:
        """Reads ``POLICY`` for every model and ``NAME=POLICY`` for one; see ``VersionPolicy.parse``.

        Raises ConfigurationError for other texts, and where two are for the same.
        """
        found: dict[str, VersionPolicy] = {}
        for text in texts:
            name, mark, policy = text.rpartition("=")
            name = name.strip()
            if mark and not name:
                raise ConfigurationError(
                    f'version_policy: found "{one_line(text, 60)}" without a model; give NAME=POLICY'
                )
            if name.casefold() in map(str.casefold, found):
                what = f"model {one_line(name, 60)} has" if name else "all models have"
                raise ConfigurationError(f"version_policy: {what} two policies; give one")
            found[name] = VersionPolicy.parse(policy)
        return cls(found.pop("", SERVE_ALL), found)

    def of(self, model: str) -> VersionPolicy:
        """Returns the policy of a model; names compare without case."""
        wanted = model.strip().casefold()
        return next((p for name, p in self.by_model.items() if name.casefold() == wanted), self.default)


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except (InvalidVersion, ValueError):  # ValueError: a number too long for int
        return False
    return True
