"""Conditions on what cells are and measured, such as ``latency_ms_p99 <= 50``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from inferometer.evaluators.plans.conditions import holds
from inferometer.evaluators.plans.references import shown
from inferometer.evaluators.plans.reporting.cases import Case
from inferometer.manifests.errors import ConfigurationError, suggestion

_CONDITION = re.compile(r"\s*(?P<name>[^\s<>=!]+)\s*(?P<operator><=|>=|==|=|!=|<|>)\s*(?P<value>.+?)\s*")


class Certainty(str, Enum):
    """How sure it is that a condition holds that the value of a figure fulfils."""

    CERTAIN = "certain"
    """It holds in the whole interval, or it is on no figure."""
    UNCERTAIN = "uncertain"
    """The interval reaches beyond the bound."""
    UNKNOWN = "unknown"
    """The figure has no interval."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a figure or a dimension with a value.

    Attributes:
        name: The figure or the dimension.
        compared: The operator.
        value: What it is compared with, as it is written.
    """

    name: str
    compared: str
    value: str

    def __str__(self) -> str:
        return f"{self.name} {self.compared} {self.value}"

    @classmethod
    def parsed(cls, text: str, cases: Sequence[Case]) -> Condition:
        """Returns the condition that a text writes.

        Raises:
            ConfigurationError: It cannot be read, or names what no case has.
        """
        parts = _CONDITION.fullmatch(text)
        if parts is None:
            raise ConfigurationError(f'"{text}" is no condition, such as "latency_ms_p99 <= 50"')
        name = parts["name"]
        known = {each for case in cases for each in (*case.dimensions, *case.figures)}
        if cases and name not in known:
            raise ConfigurationError(f'no cell has "{name}"; {suggestion(name, known)}')
        return cls(name, "==" if parts["operator"] == "=" else parts["operator"], parts["value"])

    def fulfilled_by(self, case: Case) -> bool:
        """Whether it holds for the value of a case; a case without one does not fulfil it."""
        figure, value = case.figures.get(self.name), case.dimensions.get(self.name)
        if figure is not None:
            return self._holds(figure.value)
        return value is not None and self._holds(value)

    def certainty(self, case: Case) -> Certainty:
        """How sure it is for a case, by the ends of the interval of its figure."""
        figure = case.figures.get(self.name)
        if figure is None:
            return Certainty.CERTAIN
        if figure.low is None or figure.high is None:
            return Certainty.UNKNOWN
        answers = {self._holds(each) for each in (figure.low, figure.value, figure.high)}
        return Certainty.CERTAIN if len(answers) == 1 else Certainty.UNCERTAIN

    def distance(self, case: Case) -> float:
        """By which part of its bound a case misses it: 0 where it holds, infinite without two numbers."""
        if self.fulfilled_by(case):
            return 0.0
        figure = case.figures.get(self.name)
        value = figure.value if figure is not None else case.dimensions.get(self.name)
        try:
            bound = float(self.value)
        except ValueError:
            return math.inf
        if isinstance(value, bool) or not isinstance(value, int | float):
            return math.inf
        return abs(value - bound) / abs(bound) if bound else abs(value)

    def _holds(self, value: str | float) -> bool:
        try:
            return holds(f"${{{self.name}}} {self.compared} {self.value}", {self.name: value})
        except ConfigurationError as error:
            raise ConfigurationError(
                f'"{self}" cannot be decided for "{shown(value)}"; numbers compare with numbers, '
                "and texts with == and != alone"
            ) from error


def certainty(case: Case, conditions: Iterable[Condition]) -> Certainty:
    """Returns how sure it is that all conditions hold, whose values a case fulfils."""
    found = {each.certainty(case) for each in conditions}
    return next(
        (each for each in (Certainty.UNCERTAIN, Certainty.UNKNOWN) if each in found), Certainty.CERTAIN
    )


def none_fulfils(cases: Sequence[Case], conditions: Sequence[str]) -> ConfigurationError:
    """Returns the error where no case fulfils all conditions; it names the one that comes nearest.

    That is the one whose largest ``Condition.distance`` is the least.

    Raises:
        ConfigurationError: A condition cannot be read.
    """
    parsed = [Condition.parsed(text, cases) for text in conditions]
    told = " and ".join(map(str, parsed))
    distances = [max(each.distance(case) for each in parsed) for case in cases]
    if not distances or math.isinf(min(distances)):
        return ConfigurationError(f"no cell fulfils {told}")
    nearest = cases[distances.index(min(distances))]
    has = ", ".join(_value_of(nearest, name) for name in dict.fromkeys(each.name for each in parsed))
    return ConfigurationError(f"no cell fulfils {told}; the nearest, {_name_of(nearest)}, has {has}")


def _name_of(case: Case) -> str:
    return f"{case.cell.id} ({case.cell.name})" if case.cell.name else case.cell.id


def _value_of(case: Case, name: str) -> str:
    figure = case.figures.get(name)
    if figure is None:
        return f"{name} {shown(case.dimensions.get(name))}"
    ends = "" if figure.low is None or figure.high is None else f" [{figure.low:.4g}, {figure.high:.4g}]"
    return f"{name} {figure.value:.4g}{ends}"
