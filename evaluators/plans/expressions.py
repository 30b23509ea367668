"""The expressions of plans: ``$(…)$`` in a value, in the part of Python that DLBS's configurations use.

An expression is parsed, not run: numbers, texts, truth values, tuples and lists; arithmetic, comparisons,
``and``, ``or``, ``not`` and ``a if c else b``; indexes and slices; and the functions and methods below. Every
text, number and list is bounded, and so is the time, as nothing repeats.
"""

from __future__ import annotations

import ast
import functools
import itertools
import operator
import posixpath
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_EXPRESSION = re.compile(r"\$\((.*?)\)\$", re.DOTALL)
_REFERENCE = re.compile(r"\$\{[^${}]*\}")
_MOST_NODES = 200
_MOST_CHARACTERS = 10_000
_MOST_BITS = 1024
_SHOWN_CHARACTERS = 120
_CONSTANTS = {"True": True, "true": True, "False": False, "false": False, "None": None}
_CLASSES = re.compile(r"(?:\[\^?[\w :,;./-]+\]|[\w :,;/-])+")
"""The regular expressions of ``re.sub``: characters and classes of them, which match in linear time."""
_FIELDS = re.compile(r"(?:[^{}%]|\{\d?\}|%[sd])*")
"""The texts that ``format`` and ``%`` fill in; a width could make them large."""


def has_expression(value: Any) -> bool:
    """Returns whether a value, or an item of a list, contains an expression."""
    items = value if isinstance(value, list) else [value]
    return any(isinstance(each, str) and any(_EXPRESSION.finditer(each, 0, _end(each))) for each in items)


def _end(text: str) -> int:
    """Returns the end of the last expression, after which a search would look for an end in vain."""
    return text.rfind(")$") + 2


def is_within(text: str, place: int) -> bool:
    """Returns whether a place in a text is within an expression, where a truth value is ``True``."""
    return text.rfind("$(", 0, place) > text.rfind(")$", 0, place)


def evaluated(text: str) -> Any:
    """Returns a text without references in which the value of each expression replaces it.

    A text that consists of one expression has the type of its value: a text, number, truth value or None.

    Raises:
        ValueError: An expression is not valid, or its value is too large; the message quotes it.
    """
    found = _EXPRESSION.match(text)
    if found is not None and found.end() == len(text):
        value = _value(found[1])
        return str(value) if isinstance(value, list | tuple) else value
    end = _end(text)
    return _EXPRESSION.sub(lambda each: str(_value(each[1])), text[:end]) + text[end:]


def why_not_evaluated(text: str) -> str:
    """Returns why the expressions of a text can never be evaluated; empty if they can.

    References stand for any value: only the syntax and the names are checked.
    """
    while text != (filled := _REFERENCE.sub("1", text)):
        text = filled
    try:
        for found in _EXPRESSION.finditer(text, 0, _end(text)):
            _compiled(_parsed(found[1]))
    except ValueError as error:
        return str(error)
    return ""


def _parsed(text: str) -> ast.expr:
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f'"{_shown(text)}" is longer than {_MOST_CHARACTERS} characters')
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes such as \$, which DLBS writes
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", error) or "it is nested too deeply"
        raise ValueError(f'"{_shown(text)}" is not an expression: {reason}') from error
    if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
        raise ValueError(f'"{_shown(text)}" has more than {_MOST_NODES} parts')
    return tree


def _value(text: str) -> Any:
    compiled = _compiled(_parsed(text))
    try:
        return compiled()
    except (TypeError, ValueError, LookupError, ArithmeticError, re.error) as error:
        raise ValueError(f'"{_shown(text)}" cannot be evaluated: {error}') from error


def _shown(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _SHOWN_CHARACTERS else f"{words[:_SHOWN_CHARACTERS]}…"


def _product(left: Any, right: Any) -> Any:
    if not all(isinstance(each, int | float) for each in (left, right)):
        raise TypeError("only numbers can be multiplied")
    return left * right


def _fillable(text: str) -> str:
    if not _FIELDS.fullmatch(text):
        raise ValueError("a format string can contain only the fields {}, {0}, %s and %d")
    return text


def _substituted(pattern: str, new: str, text: str) -> str:
    if not _CLASSES.fullmatch(pattern):
        raise ValueError("re.sub accepts only characters and character classes, such as [:,]")
    return re.sub(pattern, new, text)


_SAME = (
    *("Add add", "Sub sub", "Div truediv", "FloorDiv floordiv", "UAdd pos", "USub neg", "Not not_"),
    *("Eq eq", "NotEq ne", "Lt lt", "LtE le", "Gt gt", "GtE ge"),
)
"""The operators of ``ast`` and their functions in ``operator``."""
_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    **{getattr(ast, of): getattr(operator, name) for of, name in (each.split() for each in _SAME)},
    ast.Mult: _product,
    ast.Mod: lambda left, right: (_fillable(left) if isinstance(left, str) else left) % right,
    ast.In: lambda one, several: one in several,
    ast.NotIn: lambda one, several: one not in several,
    ast.Is: lambda one, other: one == other and type(one) is type(other),
    ast.IsNot: lambda one, other: one != other or type(one) is not type(other),
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{each.__name__: each for each in (len, str, int, float, min, max)},
    **{
        f"os.path.{each}": getattr(posixpath, each) for each in ("abspath", "basename", "dirname", "splitext")
    },
    "re.sub": _substituted,
}
_METHODS: Mapping[str, Callable[..., Any]] = {
    **{each: getattr(str, each) for each in ("lower", "upper", "replace", "split", "strip")},
    **{each: getattr(str, each) for each in ("startswith", "endswith")},
    "format": lambda text, *given: _fillable(text).format(*given),
}
"""The methods of texts."""


def _compiled(tree: ast.AST | None) -> Callable[[], Any]:
    """Returns what evaluates an expression; raises ValueError for Python that plans do not have."""
    match tree:
        case None | ast.Constant(value=bool() | int() | float() | str() | None):
            return _called(lambda: tree and tree.value, ())
        case ast.Name(id=name) if name in _CONSTANTS:
            return lambda: _CONSTANTS[name]
        case ast.Tuple(elts=items) | ast.List(elts=items):
            kind = list if isinstance(tree, ast.List) else tuple
            return _called(lambda *values: kind(values), items)
        case ast.UnaryOp(op=kind, operand=one):
            return _called(_operator(kind), (one,))
        case ast.BinOp(left=left, op=kind, right=right):
            return _called(_operator(kind), (left, right))
        case ast.Compare(left=left, ops=kinds, comparators=others):
            compared = [_operator(kind) for kind in kinds]
            values = [_compiled(each) for each in (left, *others)]
            return lambda: _chained(compared, (each() for each in values))
        case ast.BoolOp(op=kind, values=several):
            return functools.reduce(
                functools.partial(_either, isinstance(kind, ast.Or)), map(_compiled, several)
            )
        case ast.IfExp(test=test, body=body, orelse=other):
            chosen, yes, no = _compiled(test), _compiled(body), _compiled(other)
            return lambda: yes() if chosen() else no()
        case ast.Subscript(value=one, slice=ast.Slice(lower=lower, upper=upper, step=step)):
            return _called(lambda value, *places: value[slice(*places)], (one, lower, upper, step))
        case ast.Subscript(value=one, slice=place):
            return _called(operator.getitem, (one, place))
        case ast.Call(func=function, args=arguments, keywords=[]) if (
            name := ast.unparse(function)
        ) in _FUNCTIONS:
            return _called(_FUNCTIONS[name], arguments)
        case ast.Call(func=ast.Attribute(value=text, attr=name), args=arguments, keywords=[]) if (
            name in _METHODS
        ):
            return _called(_METHODS[name], (text, *arguments))
        case ast.Call(func=function):
            raise ValueError(
                f"{_shown(ast.unparse(function))} is not among the functions of a plan's expressions"
            )
    raise ValueError(f'"{_shown(ast.unparse(tree))}" is Python that a plan\'s expressions do not support')


def _operator(kind: ast.AST) -> Callable[..., Any]:
    if type(kind) not in _OPERATORS:
        raise ValueError(f"{type(kind).__name__} is not among the operators of a plan's expressions")
    return _OPERATORS[type(kind)]


def _chained(compared: list[Callable[..., Any]], values: Iterable[Any]) -> bool:
    """Compares values in turn; as in Python, those after the first comparison that fails are not computed."""
    return all(each(*pair) for each, pair in zip(compared, itertools.pairwise(values), strict=True))


def _either(truth: bool, one: Callable[[], Any], other: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: value if bool(value := one()) is truth else other()


def _called(function: Callable[..., Any], given: Iterable[ast.AST | None]) -> Callable[[], Any]:
    """Returns what calls a function with the values of expressions, and bounds its value."""
    arguments = [_compiled(each) for each in given]

    def call() -> Any:
        value = function(*(each() for each in arguments))
        size = len(value) if isinstance(value, str | list | tuple) else 0
        if size > _MOST_CHARACTERS or (isinstance(value, int) and value.bit_length() > _MOST_BITS):
            raise ValueError(f"it is longer than {_MOST_CHARACTERS} characters, or {_MOST_BITS} bits")
        return value

    return call
