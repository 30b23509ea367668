"""The coverage of the operator table: how each framework runs its operators, and which others it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.operators.operator import Operator
from inferometer.agent.operators.runner import OperatorRunner, RunnerOptions
from inferometer.manifests.errors import ConfigurationError, FrameworkUnavailableError


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
