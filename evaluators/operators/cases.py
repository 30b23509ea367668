"""The request of a benchmark: operators of the table, the sizes of their inputs, and modes.

The coverage of the table is how each framework runs its operators, and which others it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from inferometer.agent.hardware.environment import CPU, Device
from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.operators.operator import (
    NOTHING,
    Case,
    Operator,
    OperatorRunner,
    ParameterValue,
    Preset,
    RunnerOptions,
    Shape,
    chosen_operators,
    operators,
)
from inferometer.evaluators.kinds.operators.options import Mode, OperatorOptions
from inferometer.manifests.errors import ConfigurationError, FrameworkUnavailableError, suggestion


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


@dataclass(frozen=True, slots=True)
class Coverage:
    """What one framework has of the table.

    Attributes:
        framework: Its name.
        version: The installed version; None if it is not installed.
        forms: The ways in which it runs an operator, by the operator's name; none if it lacks it.
        reasons: Why it lacks an operator, by the operator's name.
        uncovered: The operators of the framework's own registry that the table does not use, sorted.
    """

    framework: str
    version: str | None
    forms: Mapping[str, tuple[str, ...]]
    reasons: Mapping[str, str]
    uncovered: tuple[str, ...]


def frameworks_with_operators(registry: Registry, names: Sequence[str] = ()) -> Iterator[FrameworkEntry]:
    """Yields the frameworks of some names, or all that run single operators.

    Raises:
        UnknownFrameworkError: There is no framework of a name.
        ConfigurationError: One runs no single operators.
    """
    for entry in [registry.find(name) for name in names] or registry.entries:
        if entry.operators:
            yield entry
        elif names:
            raise ConfigurationError(f"framework {entry.name} runs no single operators")


def coverage_of(entry: FrameworkEntry, operators: Sequence[Operator]) -> Coverage:
    """Returns what a framework has of some operators. It imports the framework.

    One that is not installed, or cannot be imported, lacks all of them for that reason.
    """
    try:
        runner_class = entry.load_operators()
    except FrameworkUnavailableError as error:
        reasons = dict.fromkeys((each.name for each in operators), str(error))
        return Coverage(entry.name, entry.installed_version, {}, reasons, ())
    if not (isinstance(runner_class, type) and issubclass(runner_class, OperatorRunner)):
        raise ConfigurationError(f"framework {entry.name}: {entry.operators} is no OperatorRunner")
    with closing(runner_class(RunnerOptions())) as runner:
        forms = {each.name: runner.forms(each.name) for each in operators}
        reasons = {name: runner.missing(name) for name, found in forms.items() if not found}
        return Coverage(entry.name, entry.installed_version, forms, reasons, runner.uncovered())
