"""The cells of a plan: every combination of its variables, each a command line with its own id."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferometer.evaluators.plans.expressions import fits, holds, is_one_of, resolved, shown
from inferometer.evaluators.plans.plan import Given, Parameter, Plan, Scalar, Value
from inferometer.manifests.errors import ConfigurationError

ID_LENGTH = 12
CELL = "cell."
"""The prefix of parameters that say how a cell runs, such as ``cell.software``; they belong to its id."""
_CONDITION = "${__condition."
_TYPES = {"str": str, "int": int, "float": float, "bool": bool}
_MOST_CELLS = 1_000_000
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True, slots=True)
class Cell:
    """One command line.

    Attributes:
        id: The first characters of the SHA-256 of the command, its options as they are written, and how it
            runs.
        words: The command and its arguments.
        options: Values by option, in the plan's order.
        parameters: All parameters of the cell, also those of the plan itself.
    """

    id: str
    words: tuple[str, ...]
    options: Mapping[str, Value]
    parameters: Mapping[str, Value]

    @property
    def argv(self) -> tuple[str, ...]:
        """The words after ``agent``: the command, its options, and its arguments.

        A list is an option that is given several times; one without a value is left out.
        """
        given = []
        for name, value in self.options.items():
            each_value = value if isinstance(value, list) else [value]
            given += [f"--{name}={shown(each)}" for each in each_value if each is not None]
        return (*self.words, *given)

    @property
    def name(self) -> str:
        """The label that tells the cell from others, for people."""
        return " ".join(f"{name}={shown(value)}" for name, value in self.options.items())


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition of a cell.

    Attributes:
        cell: The cell.
        repetition: Its number, from 1.
    """

    cell: Cell
    repetition: int

    @property
    def key(self) -> str:
        """The name of its folder and of its lines in the journal."""
        return f"{self.cell.id}-{self.repetition}"


def cells_of(
    plan: Plan,
    parameters: Mapping[str, Given] | None = None,
    variables: Mapping[str, Sequence[Value]] | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[Cell, ...]:
    """Returns the distinct cells of a plan, in the order of its variables.

    Args:
        plan: The plan.
        parameters: Values that replace those of the plan's parameters, which keep their types and domains.
        variables: Variables that replace those of the plan, and its parameters of the same name.
        environment: The environment variables that a reference may name in addition to the parameters.

    Raises:
        ConfigurationError: A reference, a condition, a type, a domain or a constraint is wrong, a variable
            has no values, or there are too many cells.
    """
    given = _joined(plan.parameters, parameters or {})
    varied = {**plan.variables, **{name: list(values) for name, values in (variables or {}).items()}}
    order = [name for name in plan.var_order if name in varied]
    order += [name for name in varied if name not in order]
    _check_size(plan, varied)
    found: dict[str, Cell] = {}
    for draft in _combinations(plan, given, varied, order):
        for extended in _extended(draft, plan):
            cell = _cell(plan, extended, environment or {})
            if all(holds(each, cell.parameters) for each in plan.constraints):
                found.setdefault(cell.id, cell)
    return tuple(found.values())


def runs_of(plan: Plan, cells: Sequence[Cell]) -> Iterator[Run]:
    """Yields the runs in order: each repetition of all cells, in a random order of its own."""
    for repetition in range(1, plan.repeat + 1):
        order = list(cells)
        random.Random(f"{plan.seed}-{repetition}").shuffle(order)  # noqa: S311 - an order, no secret
        for cell in order:
            yield Run(cell, repetition)


def value_of(given: Given) -> Value:
    """Returns the value of a parameter, which may be written alone or with its type and description."""
    return given.val if isinstance(given, Parameter) else given


@dataclass(frozen=True, slots=True)
class _Draft:
    """A cell before its references are resolved: its values and its parameters."""

    values: dict[str, Value]
    known: Mapping[str, Given]

    def with_given(self, given: Mapping[str, Given]) -> _Draft:
        values = {name: value_of(each) for name, each in given.items()}
        known = {name: each for name, each in given.items() if isinstance(each, Parameter)}
        return _Draft({**self.values, **values}, {**self.known, **known} if known else self.known)


def _joined(plan: Mapping[str, Given], replacing: Mapping[str, Given]) -> dict[str, Given]:
    """Merges the parameters of a plan with their replacements; a plain value replaces the value alone."""
    joined = dict(plan)
    for name, each in replacing.items():
        before = joined.get(name)
        if isinstance(before, Parameter) and not isinstance(each, Parameter):
            joined[name] = before.model_copy(update={"val": each})
        else:
            joined[name] = each
    return joined


def _check_size(plan: Plan, varied: Mapping[str, Sequence[Value]]) -> None:
    """Raises ConfigurationError for a grid that is empty or has too many cells."""
    for name, values in varied.items():
        if not values:
            raise ConfigurationError(
                f"variable {name}: has no values, and the plan no cells; name one, or leave the variable out"
            )
    size = math.prod(len(values) for values in varied.values()) + len(plan.include)
    size *= math.prod(len(each.cases) or 1 for each in plan.extensions)
    if size > _MOST_CELLS:
        raise ConfigurationError(
            f"plan {plan.name}: its variables and cases make up to {size:,} cells, more than "
            f"{_MOST_CELLS:,}; split it into several plans"
        )


def _combinations(
    plan: Plan, given: Mapping[str, Given], varied: Mapping[str, Sequence[Value]], order: Sequence[str]
) -> Iterator[_Draft]:
    """Yields each cell of the grid that is not excluded, and then the included cells."""
    plain = _Draft({name: value_of(each) for name, each in given.items()}, given)
    for combination in itertools.product(*(varied[name] for name in order)):
        values = {**plain.values, **dict(zip(order, combination, strict=True))}
        if not any(fits(values, each, strict=True) is not None for each in plan.exclude):
            yield _Draft(values, given)
    for beside in plan.include:
        yield plain.with_given(beside)


def _extended(draft: _Draft, plan: Plan) -> list[_Draft]:
    drafts = [draft]
    for number, extension in enumerate(plan.extensions):
        following: list[_Draft] = []
        for each in drafts:
            fitted = fits(each.values, extension.condition, strict=False)
            if fitted is None:
                following.append(each)
                continue
            prefix = f"__condition{number}."
            base = each.with_given({prefix + name: value for name, value in fitted.items()})
            for case in extension.cases or [{}]:
                added = base.with_given({**extension.parameters, **case})
                for name in (*extension.parameters, *case):
                    added.values[name] = _of_extension(added.values[name], prefix)
                following.append(added)
        drafts = following
    return drafts


def _of_extension(value: Value, prefix: str) -> Value:
    """Returns a value whose references to what fitted name that of this extension."""

    def replaced(item: Scalar) -> Scalar:
        return item.replace(_CONDITION, "${" + prefix) if isinstance(item, str) else item

    return [replaced(item) for item in value] if isinstance(value, list) else replaced(value)


def _cell(plan: Plan, draft: _Draft, environment: Mapping[str, str]) -> Cell:
    parameters = {
        name: _checked(name, value, draft.known.get(name))
        for name, value in resolved(draft.values, environment).items()
        if not name.startswith("__condition")
    }
    options = {name: value for name, value in parameters.items() if "." not in name}
    words = (*plan.command.split(), *plan.arguments)
    how = {name: value for name, value in parameters.items() if name.startswith(CELL)}
    told = json.dumps(
        [words, _written(options), _written(how)], sort_keys=True, ensure_ascii=True, separators=(",", ":")
    )
    return Cell(hashlib.sha256(told.encode()).hexdigest()[:ID_LENGTH], words, options, parameters)


def _written(values: Mapping[str, Value]) -> dict[str, list[str]]:
    """Returns values as a command line has them, where 16 and "16" are equal, and null counts as absent."""
    written = {
        name: [shown(each) for each in (value if isinstance(value, list) else [value]) if each is not None]
        for name, value in values.items()
    }
    return {name: texts for name, texts in written.items() if texts}


def _checked(name: str, value: Value, given: Given) -> Value:
    """Returns a value converted to the type of its parameter, if it is in the parameter's domain."""
    if not isinstance(given, Parameter):
        return value
    typed: Value = value
    if given.type is not None:
        items = [_typed(name, each, given.type) for each in (value if isinstance(value, list) else [value])]
        typed = items if isinstance(value, list) else items[0]
    for each in typed if isinstance(typed, list) else [typed]:
        if given.val_domain and each is not None and not is_one_of(each, given.val_domain):
            domain = ", ".join(shown(one) for one in given.val_domain)
            raise ConfigurationError(f'parameter {name}: "{shown(each)}" is not in its domain: {domain}')
    return typed


def _typed(name: str, value: Scalar, kind: str) -> Any:
    if value is None:
        return None
    try:
        if kind == "bool":
            text = shown(value).lower()
            if text in (*_TRUE, *_FALSE):
                return text in _TRUE
            raise ValueError
        if kind != "str" and isinstance(value, bool):
            raise ValueError
        if kind == "int" and isinstance(value, float) and not value.is_integer():
            raise ValueError
        return shown(value) if kind == "str" else _TYPES[kind](value)
    except (ValueError, OverflowError):  # an integer too large for a float
        raise ConfigurationError(f'parameter {name}: "{shown(value)}" is no {kind}') from None
