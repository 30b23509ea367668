"""Version constraints, as manifests write them.

The notation is the one of MLModelScope's manifests: comparisons (``>=1.1.0``, ``!=1.3``), comma or space for
*and*, ``||`` for *or*, partial versions and wildcards (``1.2``, ``1.x``, ``*``), ``~1.2.3`` (patch releases),
``^1.2.3`` (up to the next major version). It is translated to PEP 440, whose rules then compare the versions
that Python packages really have (``2.13.0+cpu``, ``1.9.1.post0``).
"""

from __future__ import annotations

import re

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

_TERM = re.compile(r"(?P<operator>===|==|=|!=|>=|=>|<=|=<|>|<|~>|~=|~|\^)?\s*v?(?P<version>[0-9*xX][^\s,]*)")
_ALIASES = {"=": "==", "=>": ">=", "=<": "<=", "~>": "~", "===": "=="}


class InvalidConstraintError(ValueError):
    """A text that is no version constraint."""


class Constraint:
    """A set of versions, such as ``>=1.1.0, <2`` or ``^1.4 || 2.x``; empty text and ``*`` mean any.

    Raises:
        InvalidConstraintError: The text is no version constraint.
    """

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        self._alternatives = [_specifiers(part) for part in self.text.split("||")]

    def allows(self, version: str) -> bool:
        """Whether ``version`` is in the set.

        Pre-releases count like any other version; a local part (``+cpu``) is ignored. What is no PEP 440
        version is allowed by nothing but ``*``.
        """
        try:
            public = Version(version).public
        except InvalidVersion:
            return any(not len(alternative) for alternative in self._alternatives)
        return any(alternative.contains(public, prereleases=True) for alternative in self._alternatives)

    def __str__(self) -> str:
        return self.text or "*"


def _specifiers(text: str) -> SpecifierSet:
    text = text.strip()
    if text.casefold() in {"", "*", "x", "latest"}:
        return SpecifierSet("")
    if hyphen := re.fullmatch(r"(\S+)\s+-\s+(\S+)", text):
        text = f">={hyphen[1]}, <={hyphen[2]}"
    terms: list[str] = []
    position = 0
    for match in _TERM.finditer(text):
        if text[position : match.start()].strip(" ,"):
            break
        terms += _translate(match["operator"] or "", match["version"])
        position = match.end()
    if position != len(text) or not terms:
        raise InvalidConstraintError(
            f'"{text}" is no version constraint (examples: 1.4.0, >=1.1.0, ^1.2, 1.x)'
        )
    try:
        return SpecifierSet(",".join(terms))
    except InvalidSpecifier as error:
        raise InvalidConstraintError(f'"{text}" is no version constraint: {error}') from error


def _translate(operator: str, version: str) -> list[str]:
    """Translates one comparison to PEP 440 specifiers."""
    operator = _ALIASES.get(operator, operator)
    version = re.sub(r"(\.[*xX])+$", "", version)
    if version in {"*", "x", "X"}:
        return []
    try:
        release = Version(version).release
    except InvalidVersion as error:
        raise InvalidConstraintError(f'"{version}" is no version') from error
    partial = len(release) < 3
    if operator in {"", "==", "!="}:
        return [f"{operator or '=='}{version}" + (".*" if partial else "")]
    if operator == "^":
        fixed = next((i for i, part in enumerate(release) if part), len(release) - 1)
        return [f">={version}", f"<{_next(release[: fixed + 1])}"]
    if operator == "~":
        return [f">={version}", f"<{_next(release[: 1 if len(release) == 1 else 2])}"]
    return [f"{operator}{version}"]


def _next(release: tuple[int, ...]) -> str:
    return ".".join(map(str, (*release[:-1], release[-1] + 1)))
