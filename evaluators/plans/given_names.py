"""The names of what ``-P``, ``-V`` and ``-E`` give: options, the plan's own, or DLBS's, which become ours."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from inferometer.evaluators.plans import dlbs_names
from inferometer.evaluators.plans.plan import Plan
from inferometer.evaluators.plans.software.cell import CORES, IMAGE, LAUNCHER, SLURM, SOFTWARE, VARIABLE
from inferometer.manifests.errors import ConfigurationError, suggestion

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_OF_CONDITION = "__condition."
_CONDITION = "condition"
_OF_CELL = (SOFTWARE, IMAGE, LAUNCHER, CORES, SLURM)


class GivenNames:
    """Tells what a name stands for that ``-P``, ``-V`` or ``-E`` gives.

    A name without a dot is an option, which the command checks. One with a dot has a use only where the plan,
    or an extension that is given too, sets it, tests it or refers to it.

    Args:
        plan: The plan.
        given: The names that ``-P`` and ``-V`` give.
        extensions: What ``-E`` gives, which may be no extensions.
    """

    def __init__(self, plan: Plan, given: Iterable[str], extensions: Sequence[Any]) -> None:
        self._command = plan.command
        self._extensions = extensions
        content = plan.model_dump(mode="json", exclude_unset=True)
        self._known = {*plan.parameters, *plan.variables}
        for extension in plan.extensions:
            self._known |= {*extension.condition, *extension.parameters}
            self._known.update(*extension.cases)
        self._known.update(*plan.include, *plan.exclude)
        self._set, self._used = set(given), _references(json.dumps([content, *extensions], default=str))
        for each in extensions:
            for part, names in ((part, names) for part, names in _parts(each) if isinstance(names, Mapping)):
                (self._used if part == _CONDITION else self._set).update(names)

    def renamed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns values by the names that the plan has for them.

        Raises:
            ConfigurationError: The plan has no such name, or no equal of DLBS's parameter or of its value.
        """
        return self._renamed(given, self._used)

    def _renamed(self, given: Mapping[str, Any], used: Collection[str]) -> dict[str, Any]:
        return {self._name(name, value, used): self._value(value) for name, value in given.items()}

    def extensions(self) -> list[Any]:
        """Returns the extensions with the names of the plan; what is none stays as it is.

        Raises:
            ConfigurationError: As for ``renamed``.
        """
        return [self._extension(each) if isinstance(each, Mapping) else each for each in self._extensions]

    def _extension(self, given: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(given)
        if isinstance(tested := found.get(_CONDITION), Mapping):
            found[_CONDITION] = self._renamed(tested, self._set)
        if isinstance(added := found.get("parameters"), Mapping):
            found["parameters"] = self.renamed(added)
        if isinstance(cases := found.get("cases"), list):
            found["cases"] = [self.renamed(each) if isinstance(each, Mapping) else each for each in cases]
        return found

    def _name(self, name: str, value: Any, used: Collection[str]) -> str:
        if "." not in name or name in self._known:
            return name
        ours = dlbs_names.ours(name, self._command)
        if ours != name:
            for each in value if isinstance(value, list) else [value]:
                if reason := dlbs_names.why_not(name, each):
                    raise ConfigurationError(f"{name}={each}: {reason}")
        elif not (_is_of_cell(name) or any(fnmatchcase(name, each) for each in used)):
            known = [each for each in (*self._known, *_OF_CELL, *dlbs_names.NAMES) if "." in each]
            raise ConfigurationError(
                f"{name}: the plan has no such parameter, and nothing refers to it; {suggestion(name, known)}"
            )
        return ours

    def _value(self, value: Any) -> Any:
        """A value whose references have the names of the plan."""
        if isinstance(value, list):
            return [self._value(each) for each in value]
        if not isinstance(value, str):
            return value
        return _INNERMOST.sub(lambda found: f"${{{self._referred(found[1])}}}", value)

    def _referred(self, name: str) -> str:
        return (
            name
            if name in self._known or name.startswith(_OF_CONDITION)
            else dlbs_names.NAMES.get(name, name)
        )


def _is_of_cell(name: str) -> bool:
    return name in _OF_CELL or name.startswith(VARIABLE)


def _parts(extension: Any) -> Iterator[tuple[str, Any]]:
    """The parts of an extension that have names."""
    if isinstance(extension, Mapping):
        yield from extension.items()
        cases = extension.get("cases")
        yield from (("cases", each) for each in (cases if isinstance(cases, list) else ()))


def _references(text: str) -> set[str]:
    """What a text refers to, with ``*`` for a reference within a name."""
    found: set[str] = set()
    while innermost := _INNERMOST.findall(text):
        found.update(innermost)
        text = _INNERMOST.sub("*", text)
    return found
