"""Version constraints, as manifests write them.

The notation is the one of MLModelScope's manifests: comparisons (``>=1.1.0``, ``!=1.3``), comma or space for
*and*, ``||`` for *or*, partial versions and wildcards (``1.2``, ``1.x``, ``*``), ``~1.2.3`` (patch releases),
``^1.2.3`` (up to the next major version), ``1.2 - 1.4`` (both included). A partial version stands for all
that begin with it: ``1.2``, ``<=1.2`` and ``!=1.2`` mean the whole of 1.2, and ``>1.2`` begins after it.

It is translated to PEP 440, whose rules then compare the versions that Python packages really have
(``2.13.0+cpu``, ``1.9.1.post0``). In two things it differs from semver, which MLModelScope used: a
pre-release counts like any other version, and a post-release, which semver does not know, is not the version
that it follows: ``1.9.1`` does not allow ``1.9.1.post0``; ``1.9``, ``~1.9.1`` and ``>=1.9.1`` do.
"""

from __future__ import annotations

import re

from packaging.specifiers import SpecifierSet
from packaging.version import Version

_TERM = re.compile(r"(?P<operator>===|==|=|!=|>=|=>|<=|=<|>|<|~>|~=|~|\^)?\s*v?(?P<version>[0-9*xX][^\s,]*)")
_SHOWN_CHARACTERS = 60
_ALIASES = {"=": "==", "=>": ">=", "=<": "<=", "~>": "~", "===": "=="}


class InvalidConstraintError(ValueError):
    """A text that is no version constraint."""


class Constraint:
    """A set of versions, such as ``>=1.1.0, <2`` or ``^1.4 || 2.x``; empty text and ``*`` mean any.

    The local part of a version (``+cpu``) counts neither here nor in what is compared.

    Raises:
        InvalidConstraintError: The text is no version constraint.
    """

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        parts = self.text.split("||")
        if len(parts) > 1 and not all(part.strip() for part in parts):
            raise InvalidConstraintError("a version constraint has nothing on one side of ||")
        self._alternatives = [_specifiers(part) for part in parts]

    def allows(self, version: str) -> bool:
        """Whether ``version`` is in the set.

        What is no PEP 440 version is allowed by nothing but ``*``.
        """
        try:
            public = Version(version).public
        except ValueError:  # InvalidVersion, or a number too long for int
            return any(not len(alternative) for alternative in self._alternatives)
        return any(alternative.contains(public, prereleases=True) for alternative in self._alternatives)

    def __str__(self) -> str:
        return self.text or "*"


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
            raise InvalidConstraintError(f"{comparisons[position:]} is no comparison")
        return SpecifierSet(",".join(terms))
    except ValueError as error:  # also InvalidVersion, InvalidSpecifier, and a number too long for int
        shown = " ".join(text.split())
        shown = shown if len(shown) <= _SHOWN_CHARACTERS else shown[: _SHOWN_CHARACTERS - 1] + "…"
        raise InvalidConstraintError(
            f'"{shown}" is no version constraint (examples: 1.4.0, >=1.1.0, ^1.2, 1.x)'
        ) from error


def _translate(operator: str, text: str) -> list[str]:
    """Translates one comparison to PEP 440 specifiers.

    Raises:
        ValueError: ``text`` is no version, or no version can meet the comparison.
    """
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
        return [f">={version}", f"<{_next(release[: 1 if len(release) == 1 else 2])}"]
    if partial and operator == "<=":
        return [f"<{_next(release)}"]
    if partial and operator == ">":
        return [f">={_next(release)}"]
    return [f"{operator}{version}"]


def _next(release: tuple[int, ...]) -> str:
    return ".".join(map(str, (*release[:-1], release[-1] + 1)))
