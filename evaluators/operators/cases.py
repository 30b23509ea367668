"""The request of a benchmark: operators of the table, the sizes of their inputs, and modes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inferometer.agent.hardware.device import CPU, Device
from inferometer.agent.operators.operator import NOTHING, Case, ParameterValue, Preset, Shape
from inferometer.agent.operators.table.registry import chosen_operators, operators
from inferometer.evaluators.kinds.operators.measurement import Mode, OperatorOptions
from inferometer.manifests.errors import ConfigurationError, suggestion


@dataclass(frozen=True, slots=True)
class OwnCase:
    """Sizes and parameters of a user, for one operator of the table.

    Attributes:
        operator: Its name.
        shapes: The shapes of some or all of its given inputs.
        parameters: Those that differ from the defaults.
    """

    operator: str
    shapes: Mapping[str, Shape] = field(default_factory=lambda: NOTHING)
    parameters: Mapping[str, ParameterValue] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRequest:
    """A benchmark of operators.

    Attributes:
        operators: Names in the table.
        categories: Groups of the table.
        everything: Whether the whole table is meant.
        presets: The sizes of the named operators: presets, or sizes such as ``1024x1024``, which apply to all
            given inputs of an operator.
        own: Other cases.
        frameworks: The frameworks, in the order of the evaluations; empty for all that are installed.
        modes: The modes to time.
        forms: The forms to run, if a framework has them; empty for the first one of each framework.
        device: The device.
        threads: The CPU threads of an operator; None for ``default_threads``.
        options: How each row is measured.

    Raises:
        ConfigurationError: A name is unknown, nothing is requested, or sizes do not fit an operator.
    """

    operators: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    everything: bool = False
    presets: tuple[str, ...] = (Preset.NORMAL.value,)
    own: tuple[OwnCase, ...] = ()
    frameworks: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = (Mode.FORWARD,)
    forms: tuple[str, ...] = ()
    device: Device = CPU
    threads: int | None = None
    options: OperatorOptions = OperatorOptions()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        if not self.cases():
            raise ConfigurationError(
                "no operator is named; name some, such as add conv2d, or a category, or all of them"
            )

    def cases(self) -> tuple[tuple[str, Case], ...]:
        """Returns the name of an operator and a case, for all requested cases, in the table's order."""
        names = operators() if self.everything else self.operators
        named = chosen_operators(names, self.categories)
        found = [
            (each.name, case) for each in named for size in self.presets for case in _cases(each.name, size)
        ]
        for own in self.own:
            (operator,) = chosen_operators([own.operator])
            found.append((own.operator, operator.own_case(own.shapes, own.parameters)))
        return tuple(found)


def _cases(name: str, size: str) -> tuple[Case, ...]:
    """Returns the cases of an operator for a preset, or for a size such as ``1024x1024``."""
    operator = operators()[name]
    if size in tuple(Preset):
        return operator.cases(Preset(size))
    parts = size.replace("×", "x").split("x")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigurationError(
            f'unknown shapes "{size}"; {suggestion(size, [each.value for each in Preset])}, '
            "or sizes such as 1024x1024"
        )
    shape = tuple(int(part) for part in parts)
    return (operator.own_case(dict.fromkeys(operator.given, shape)),)
