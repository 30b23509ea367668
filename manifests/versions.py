"""Version constraints of manifests.

The notation is the one of MLModelScope's manifests: comparisons (``>=1.1.0``, ``!=1.3``), comma or space for
*and*, ``||`` for *or*, partial versions and wildcards (``1.2``, ``1.x``, ``*``), ``~1.2.3`` (patch releases),
``^1.2.3`` (up to the next major version), ``1.2 - 1.4`` (both included). A partial version stands for all
versions that begin with it: ``1.2``, ``<=1.2`` and ``!=1.2`` mean the whole of 1.2, and ``>1.2`` begins after
it.

Constraints are translated to PEP 440, whose rules compare the versions of real Python packages
(``2.13.0+cpu``, ``1.9.1.post0``). The result differs from semver, which MLModelScope used, in two points: a
pre-release is treated like any other version, and a post-release, which semver does not have, differs from
the version that it follows: ``1.9.1`` does not allow ``1.9.1.post0``; ``1.9``, ``~1.9.1`` and ``>=1.9.1`` do.
"""

from __future__ import annotations

import re

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from inferometer.manifests.errors import one_line

_TERM = re.compile(r"(?P<operator>===|==|=|!=|>=|=>|<=|=<|>|<|~>|~=|~|\^)?\s*v?(?P<version>[0-9*xX][^\s,]*)")
_MOST_CHARACTERS = 1000
_ALIASES = {"=": "==", "=>": ">=", "=<": "<=", "~>": "~", "===": "=="}


class InvalidConstraintError(ValueError):
    """A text is not a version constraint."""


class Constraint:
    """A set of versions, such as ``>=1.1.0, <2`` or ``^1.4 || 2.x``; ``*`` or an empty text means any.

    The local part of a version (``+cpu``) is ignored in comparisons. A text that is not a constraint, or has
    more than 1,000 characters, raises InvalidConstraintError.
    """

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        if len(self.text) > _MOST_CHARACTERS:  # the time to read it grows with the square
            raise InvalidConstraintError(f"a version constraint has at most {_MOST_CHARACTERS} characters")
        parts = self.text.split("||")
        if len(parts) > 1 and not all(part.strip() for part in parts):
            raise InvalidConstraintError("a version constraint has nothing on one side of ||")
        self._alternatives = [_specifiers(part) for part in parts]

    def allows(self, version: str) -> bool:
        """Returns whether ``version`` is in the set.

        A text that is not a PEP 440 version is only in the set ``*``.
        """
        try:
            public = Version(version).public
        except ValueError:  # InvalidVersion, or a number too long for int
            return any(not len(alternative) for alternative in self._alternatives)
        return any(alternative.contains(public, prereleases=True) for alternative in self._alternatives)

    def __str__(self) -> str:
        return self.text or "*"


def exactly(version: str) -> str:
    """Returns the constraint that only ``version`` meets; ``1.2`` itself would mean all of 1.2."""
    parsed = Version(version)
    text = parsed.public
    if text == parsed.base_version:
        text += ".0" * (3 - len(parsed.release))
    return f"=={text}"


def _specifiers(text: str) -> SpecifierSet:
    text = text.strip()
    if text.casefold() in {"", "*", "x", "latest"}:
        return SpecifierSet("")
    hyphen = re.fullmatch(r"(\S+)\s+-\s+(\S+)", text)
    comparisons = f">={hyphen[1]}, <={hyphen[2]}" if hyphen else text
    terms: list[str] = []
    position = 0
    try:
        for match in _TERM.finditer(comparisons):
            if comparisons[position : match.start()].replace(",", " ").strip():
                break
            terms += _translate(_ALIASES.get(match["operator"], match["operator"] or "=="), match["version"])
            position = match.end()
        if position != len(comparisons):
            raise InvalidConstraintError(f"{comparisons[position:]} is not a comparison")
        return SpecifierSet(",".join(terms))
    except ValueError as error:  # also InvalidVersion, InvalidSpecifier, and a number too long for int
        raise InvalidConstraintError(
            f'"{one_line(text, 60)}" is not a version constraint (examples: 1.4.0, >=1.1.0, ^1.2, 1.x)'
        ) from error


def _translate(operator: str, text: str) -> list[str]:
    """Translates one comparison to PEP 440 specifiers; raises ValueError if no version can satisfy it."""
    known = re.sub(r"(\.[*xX])+$", "", text)
    if known in {"*", "x", "X"}:
        if operator in {"<", ">", "!="}:
            raise InvalidConstraintError("no version is outside of all")
        return []
    parsed = Version(known)
    version, release = parsed.public, parsed.release
    partial = known != text or (len(release) < 3 and version == parsed.base_version)
    if operator in {"==", "!="}:
        return [f"{operator}{version}" + (".*" if partial else "")]
    if operator == "^":
        fixed = next((i for i, part in enumerate(release) if part), len(release) - 1)
        return [f">={version}", f"<{_next(release[: fixed + 1])}"]
    if operator == "~":
        return [f">={version}", f"<{_next(release[:2])}"]
    if partial and operator == "<=":
        return [f"<{_next(release)}"]
    if partial and operator == ">":
        return [f">={_next(release)}"]
    return [f"{operator}{version}"]


def _next(release: tuple[int, ...]) -> str:
    return ".".join(map(str, (*release[:-1], release[-1] + 1)))
