"""The cells of a plan: every combination of its variables, each a command line with its own id.

References between parameters, expressions, conditions by DLBS's rules, and comparisons are evaluated
without ``eval``. A reference is ``${name}``, nested as ``${${exp.framework}.backend}``; an expression is
``$(1 + 1)$``.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import operator
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferometer.evaluators.plans.expressions import evaluated, has_expression, is_within
from inferometer.evaluators.plans.plan import Given, Parameter, Plan, Scalar, Value, items_of
from inferometer.manifests.errors import ConfigurationError, suggestion

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_NUMBERED_CONDITION = re.compile(r"^__condition\d+\.")
_MOST_STEPS = 1000
_MOST_DEPTH = 100
_MOST_CHARACTERS = 100_000
_COMPARISON = re.compile(r"(?P<left>.+?)\s*(?P<operator><=|>=|==|!=|<|>)\s*(?P<right>.+)", re.DOTALL)
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


def is_constant(value: Any) -> bool:
    """Returns whether a value has neither references nor expressions."""
    referring = any(isinstance(text, str) and "${" in text for text in items_of(value))
    return not referring and not has_expression(value)


def referred_in(text: str) -> set[str]:
    """Returns the names that a text refers to, with ``*`` for a reference inside a name."""
    found: set[str] = set()
    while innermost := _INNERMOST.findall(text):
        found.update(innermost)
        text = _INNERMOST.sub("*", text)
    return found


def with_references(value: Any, rename: Callable[[str], str]) -> Any:
    """Renames the references in a value, or in a list of values, and returns the result."""
    if isinstance(value, list):
        return [with_references(each, rename) for each in value]
    if not isinstance(value, str):
        return value
    return _INNERMOST.sub(lambda found: f"${{{rename(found[1])}}}", value)


def resolved(values: Mapping[str, Value], environment: Mapping[str, str]) -> dict[str, Value]:
    """Returns the values with their references and then their expressions resolved.

    A parameter takes precedence over an environment variable of the same name. A text that consists of one
    reference has the type of the value that it names; in a longer text, a list becomes its items separated by
    spaces, as in DLBS. A truth value is ``true`` there, and ``True`` within an expression.

    Raises:
        ConfigurationError: A reference names an unknown parameter, is not closed, or is circular; an
            expression cannot be evaluated; or a value becomes too long.
    """
    done: dict[str, Value] = {}

    def resolve(name: str, way: tuple[str, ...]) -> Value:
        if name in done:
            return done[name]
        if name in way:
            circle = " → ".join((*way[way.index(name) :], name))
            raise ConfigurationError(f"parameter {way[0]}: its references lead back to itself: {circle}")
        way, where = (*way, name), f"parameter {name}"
        if len(way) > _MOST_DEPTH:
            raise ConfigurationError(
                f"parameter {way[0]}: its references are deeper than {_MOST_DEPTH} levels"
            )

        def looked_up(wanted: str) -> Value:
            if wanted in values:
                return resolve(wanted, way)
            if wanted in environment:
                return environment[wanted]
            raise _unknown(where, wanted, values)

        value = values[name]
        if isinstance(value, list):
            whole = [each for item in value for each in items_of(_replaced(item, looked_up, where))]
            if len(whole) > _MOST_CHARACTERS:
                raise _too_long(where)
            done[name] = whole
        else:
            done[name] = _replaced(value, looked_up, where)
        return done[name]

    return {name: resolve(name, ()) for name in values}


def _unknown(where: str, wanted: str, values: Mapping[str, Value]) -> ConfigurationError:
    """Returns the error for an unknown reference; captured values have the names that extensions use."""
    written = _NUMBERED_CONDITION.sub("__condition.", wanted)
    known = dict.fromkeys(_NUMBERED_CONDITION.sub("__condition.", name) for name in values)
    return ConfigurationError(f'{where}: unknown reference "{written}"; {suggestion(written, known)}')


def _too_long(where: str) -> ConfigurationError:
    return ConfigurationError(f"{where}: is longer than {_MOST_CHARACTERS} characters with its references")


def _replaced(value: Scalar, looked_up: Callable[[str], Value], where: str) -> Value:
    """Returns a value with its references and expressions replaced; an error begins with ``where``."""
    if not isinstance(value, str):
        return value
    text = value
    for _ in range(_MOST_STEPS):
        found = _INNERMOST.search(text)
        if found is None:
            if "${" in text:
                raise ConfigurationError(f'{where}: a reference in "{value}" is not closed; write ${{NAME}}')
            try:
                return evaluated(text)  # type: ignore[no-any-return]
            except ValueError as error:
                raise ConfigurationError(f"{where}: {error}") from error
        referred = looked_up(found[1])
        if found[0] == text:
            if isinstance(referred, str) and "${" in referred:
                text = referred
                continue
            return referred
        plain = isinstance(referred, bool | None) and is_within(text, found.start())
        text = text[: found.start()] + (str(referred) if plain else shown(referred)) + text[found.end() :]
        if len(text) > _MOST_CHARACTERS:
            raise _too_long(where)
    raise ConfigurationError(f"{where}: more than {_MOST_STEPS} references in one value")


def shown(value: Value) -> str:
    """Returns a value as the text of an option; a list becomes its items separated by spaces."""
    if isinstance(value, list):
        return " ".join(shown(each) for each in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def fits(
    values: Mapping[str, Value], condition: Mapping[str, Value], *, strict: bool
) -> dict[str, Value] | None:
    """Returns matched values as ``NAME_0`` and their groups as ``NAME_1`` …; None if values do not match.

    Args:
        values: Parameters, which may have references.
        condition: For each parameter, an equal value, a list of values, or, for a text, a regular expression
            that matches at the start of the value. An empty text matches only an empty text.
        strict: Whether a parameter that is not among the values fails the condition, instead of meeting it.

    Raises:
        ConfigurationError: A parameter that the condition names has references, or a text is not a valid
            regular expression.
    """
    found: dict[str, Value] = {}
    for name, wanted in condition.items():
        if name not in values:
            if strict:
                return None
            continue
        value = values[name]
        if not is_constant(value):
            raise ConfigurationError(
                f'the condition on {name} cannot be decided: its value "{shown(value)}" has references; '
                "conditions accept only parameters without references and expressions"
            )
        if isinstance(wanted, str) and wanted:
            try:
                match = re.match(wanted, shown(value))
            except re.error as error:
                raise ConfigurationError(
                    f"the condition on {name} is not a regular expression: {error}"
                ) from error
            if match is None:
                return None
            found.update({f"{name}_{place}": group for place, group in enumerate(match.groups(), 1)})
        elif not _is_one_of(value, items_of(wanted)):
            return None
        found[f"{name}_0"] = value
    return found


def _is_one_of(value: Value, wanted: list[Any]) -> bool:
    """Returns whether a value is among the wanted ones; unlike in Python, true does not equal 1."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in wanted)


def holds(comparison: str, values: Mapping[str, Value]) -> bool:
    """Returns whether a comparison such as ``${a} * ${b} <= 256`` holds for values without references.

    Each side is a text, a number or a product of numbers. Texts support only == and !=.

    Raises:
        ConfigurationError: The text is not a comparison, or its sides are not comparable.
    """
    parts = _COMPARISON.fullmatch(comparison.strip())
    if parts is None:
        raise ConfigurationError(
            f'the constraint "{comparison}" is no comparison, such as ${{batch_size}} * ${{replicas}} <= 256'
        )
    left, right = (_side(parts[name], values, comparison) for name in ("left", "right"))
    compared = parts["operator"]
    if compared not in ("==", "!=") and any(isinstance(side, str) for side in (left, right)):
        raise ConfigurationError(
            f'the constraint "{comparison}": "{shown(left)}" {compared} "{shown(right)}" requires numbers; '
            "texts can only be compared with == and !="
        )
    return bool(_OPERATORS[compared](left, right))


def _side(text: str, values: Mapping[str, Value], comparison: str) -> str | int | float:
    where = f'the constraint "{comparison}"'

    def looked_up(wanted: str) -> Value:
        if wanted in values:
            return values[wanted]
        raise _unknown(where, wanted, values)

    factors = [_number(_replaced(part.strip(), looked_up, where)) for part in text.split("*")]
    if len(factors) == 1:
        return factors[0]
    product: int | float = 1
    for factor in factors:
        if isinstance(factor, str):
            raise ConfigurationError(f'{where}: "{factor}" is not a number')
        product *= factor
    return product


def _number(value: Value) -> str | int | float:
    """Returns a value as a number if it is one or can be parsed as one, otherwise as text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = shown(value)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


_ID_LENGTH = 12
CELL = "cell."
"""The prefix of parameters that define how a cell runs, such as ``cell.software``; its id covers them."""
NODES, TASKS = f"{CELL}nodes", f"{CELL}tasks_per_node"
"""The parameters with the number of nodes on which a cell runs, and of its tasks on each of them."""
_CONDITION = "${__condition."
_TYPES = {"str": str, "int": int, "float": float, "bool": bool}
_MOST_CELLS = 1_000_000
_MOST_TASKS = 1024
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True, slots=True)
class Cell:
    """One command line.

    Attributes:
        id: The first characters of the SHA-256 of the command, its options as they are written, and how it
            runs.
        words: The command and its arguments.
        options: Values by option, in the plan's order.
        parameters: All parameters of the cell, including those of the plan itself.
    """

    id: str
    words: tuple[str, ...]
    options: Mapping[str, Value]
    parameters: Mapping[str, Value]

    @property
    def argv(self) -> tuple[str, ...]:
        """The words after ``agent``: the command, its options, and its arguments.

        An option with a list of values is given several times; one without a value is left out.
        """
        options = (f"--{name}={text}" for name, texts in _written(self.options).items() for text in texts)
        return (*self.words, *options)

    @property
    def name(self) -> str:
        """A label for people that distinguishes the cell from others."""
        return " ".join(f"{name}={shown(value)}" for name, value in self.options.items())

    @property
    def is_simulated(self) -> bool:
        """Whether its command line is printed, and it does not run."""
        return self.parameters.get("exp.status") == "simulate"


def tasks_of(cell: Cell) -> tuple[int, int]:
    """Returns the number of nodes that a cell runs on, and of its tasks on each of them; 1 by default.

    Raises:
        ConfigurationError: A number is not a whole number from 1 to 1024.
    """

    def count(name: str) -> int:
        text = shown(cell.parameters.get(name)) or "1"
        if not (text.isdecimal() and text.isascii() and 1 <= int(text) <= _MOST_TASKS):
            raise ConfigurationError(f'{name}: "{text}" is not a whole number from 1 to {_MOST_TASKS}')
        return int(text)

    return count(NODES), count(TASKS)


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition of a cell.

    Attributes:
        repetition: Its number, from 1.
    """

    cell: Cell
    repetition: int

    @property
    def key(self) -> str:
        """The name of its folder and of its lines in the journal."""
        return f"{self.cell.id}-{self.repetition}"


def cells_of(
    plan: Plan, environment: Mapping[str, str] | None = None, *, distinct: bool = True
) -> tuple[Cell, ...]:
    """Returns the cells of a plan, in the order of its variables.

    Args:
        plan: The plan.
        environment: The environment variables that a reference may name in addition to the parameters.
        distinct: Whether cells with the same id are returned only once.

    Raises:
        ConfigurationError: A reference, a condition, a type, a domain or a constraint is wrong, or there
            are too many cells.
    """
    _check_size(plan)
    found: dict[str, Cell] = {}
    for draft in _combinations(plan):
        for extended in _extended(draft, plan):
            cell = _cell(plan, extended, environment or {})
            if all(holds(each, cell.parameters) for each in plan.constraints):
                found.setdefault(cell.id if distinct else str(len(found)), cell)
    return tuple(found.values())


def runs_of(plan: Plan, cells: Sequence[Cell]) -> Iterator[Run]:
    """Yields the runs: all cells once per repetition, in a random order that differs between repetitions."""
    for repetition in range(1, plan.repeat + 1):
        order = list(cells)
        random.Random(f"{plan.seed}-{repetition}").shuffle(order)  # noqa: S311 - an order, no secret
        for cell in order:
            yield Run(cell, repetition)


def _value_of(given: Given) -> Value:
    """Returns the value of a parameter, which may be written alone or with its type and description."""
    return given.val if isinstance(given, Parameter) else given


@dataclass(frozen=True, slots=True)
class _Draft:
    """A cell before its references are resolved: its values and its parameters."""

    values: dict[str, Value]
    known: Mapping[str, Given]

    def with_given(self, given: Mapping[str, Given]) -> _Draft:
        values = {name: _value_of(each) for name, each in given.items()}
        known = {name: each for name, each in given.items() if isinstance(each, Parameter)}
        return _Draft({**self.values, **values}, {**self.known, **known} if known else self.known)


def _check_size(plan: Plan) -> None:
    """Raises ConfigurationError for a grid that has too many cells."""
    size = math.prod(len(values) for values in plan.variables.values()) + len(plan.include)
    size *= math.prod(len(each.cases) or 1 for each in plan.extensions)
    if size > _MOST_CELLS:
        raise ConfigurationError(
            f"plan {plan.name}: its variables and cases make up to {size:,} cells, more than "
            f"{_MOST_CELLS:,}; split it into several plans"
        )


def _combinations(plan: Plan) -> Iterator[_Draft]:
    """Yields each cell of the grid that is not excluded, and then the included cells."""
    plain = _Draft({name: _value_of(each) for name, each in plan.parameters.items()}, plan.parameters)
    order = [name for name in dict.fromkeys((*plan.var_order, *plan.variables)) if name in plan.variables]
    for combination in itertools.product(*(plan.variables[name] for name in order)):
        values = {**plain.values, **dict(zip(order, combination, strict=True))}
        if not any(fits(values, each, strict=True) is not None for each in plan.exclude):
            yield _Draft(values, plan.parameters)
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


def _of_extension(value: Value, prefix: str) -> Any:
    """Returns a value in which references to the match refer to the match of this extension."""
    if isinstance(value, list):
        return [_of_extension(item, prefix) for item in value]
    return value.replace(_CONDITION, "${" + prefix) if isinstance(value, str) else value


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
    return Cell(hashlib.sha256(told.encode()).hexdigest()[:_ID_LENGTH], words, options, parameters)


def _written(values: Mapping[str, Value]) -> dict[str, list[str]]:
    """Returns values as written on a command line: 16 and "16" are equal, and null is treated as absent."""
    written = {
        name: [shown(each) for each in items_of(value) if each is not None] for name, value in values.items()
    }
    return {name: texts for name, texts in written.items() if texts}


def _checked(name: str, value: Value, given: Given) -> Value:
    """Returns a value converted to the type of its parameter, if it is in the parameter's domain."""
    if not isinstance(given, Parameter):
        return value
    typed: Value = value
    if given.type is not None:
        items = [_typed(name, each, given.type) for each in items_of(value)]
        typed = items if isinstance(value, list) else items[0]
    for each in items_of(typed):
        if given.val_domain and each is not None and not _is_one_of(each, given.val_domain):
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
        raise ConfigurationError(f'parameter {name}: "{shown(value)}" is not of type {kind}') from None
