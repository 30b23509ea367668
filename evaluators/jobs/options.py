"""Options as fields of requests: their declaration, ranges and defaults, for every front end.

A field of a request that is made by ``declared`` is an option of the command line and an argument of the
library. Its flag is its name without the unit of time, unless it names others. Each front end shows, checks
and refuses the same. The module imports little, because the help of the command line shows the options.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from inferometer.manifests.errors import ConfigurationError, suggestion

MOST_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Range:
    """Finite numbers between two ends.

    Attributes:
        least: The lower end.
        most: The upper end; None for none.
        open: Whether the ends are left out.
    """

    least: float
    most: float | None = None
    open: bool = False

    def __contains__(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        above = value > self.least if self.open else value >= self.least
        return above and (self.most is None or value < self.most or (value == self.most and not self.open))

    def __str__(self) -> str:
        least = f"{'above' if self.open else 'at least'} {self.least}"
        return (
            least if self.most is None else f"{least} and {'below' if self.open else 'at most'} {self.most}"
        )


POSITIVE, NOT_NEGATIVE, COUNT = Range(0, open=True), Range(0), Range(1)
SEED = Range(0, MOST_SEED)
COMPARISON = {"threshold": Range(0, 10), "accuracy_threshold": Range(0, 10)}
"""The numbers of a comparison."""


def check(request: object, ranges: Mapping[str, Range]) -> None:
    """Checks the numbers that a request has.

    Raises:
        ConfigurationError: One is outside of its range.
    """
    for name, allowed in ranges.items():
        check_number(name, getattr(request, name, None), allowed)


def check_number(name: str, value: float | None, allowed: Range) -> None:
    """Checks a number; None is one that is left out.

    Raises:
        ConfigurationError: It is outside of its range; the message has its name without the unit of time.
    """
    if value is not None and value not in allowed:
        raise ConfigurationError(f"{name.removesuffix('_s')} is {value}; it must be {allowed}")


class SharedMemoryUse(Enum):
    """Whether tensors travel to a server on this host through shared memory: where both can, or must."""

    AUTO = "auto"
    OFF = "off"
    ON = "on"


OPEN_TIMEOUT_S = 300.0
"""How long an agent may take to open a model, which it may first have to download."""
ANSWER_TIMEOUT_S = 300.0
"""How long an agent may take to answer one batch."""
MODEL = "DigitsCNN"
BATCH_SIZE = 64
TOP_CLASSES = 5
"""The number of best classes that are kept for each input."""
TARGET_CI_PERCENT = 5.0
"""Half the width of the interval of p50 that an evaluation measures for by default."""
INITIAL_QPS = 16.0
ARRIVAL = "poisson"
PERCENTILE = 99.0
QUERY_TIMEOUT_MS = 10_000.0
WARM_UP_QUERIES = 16
WORKLOAD_MIN_DURATION_S = 10.0
WORKLOAD_MIN_QUERIES = 512
PROBE_MIN_DURATION_S = 2.0
PROBE_MIN_QUERIES = 100
LATENCY_BOUND_MS = 100.0
TOLERANCE = 0.02
TIME_BUDGET_S = 120.0
SPARE_CORES = 1
"""The cores that a model in this process leaves to the thread that sends its queries."""
TRACE_SAMPLE = 0.01
"""The share of the queries under load that are traced where their spans are sent to a collector."""
THRESHOLD = 0.05
"""The share by which a figure of time or a rate may differ in a comparison."""
ACCURACY_THRESHOLD = 0.01
"""The share by which top-1 may differ in a comparison."""
BENCH_BATCH_SIZE = 16
"""DLBS's ``exp.replica_batch``."""
BENCH_BATCHES = 100
BENCH_WORKERS = 4
BENCH_PREFETCH = 10
MXNET, PYTORCH = "mxnet", "pytorch"
"""The frameworks that train, in small letters."""
KV_STORES = ("local", "device", "dist_sync", "dist_device_sync", "dist_async", "nccl", "horovod")
"""The ways in which MXNet sums gradients."""
DIST_BACKENDS = ("gloo", "nccl", "mpi")
"""The ways in which PyTorch sums gradients."""
OPERATOR_DTYPES = ("float32", "float", "float64", "float16", "bfloat16", "int8", "int32", "int64")
OPERATOR_VALUES = ("table", "zeros", "ones")
"""The element types and input values of operators; the first ones are the defaults."""


_KEY = "declared"


@dataclass(frozen=True, slots=True)
class Declared:
    """The description of an option for front ends.

    Attributes:
        help: A sentence that describes it.
        metavar: The placeholder of its value, such as ``S`` for seconds.
        within: The numbers that are allowed; None for no number, or any.
        choices: The texts that are allowed; empty for any.
        flags: Its flags; empty for the one of its name.
        default_text: The default that the help names where the field's own is None.
        reads: Whether it names a file that is read.
        made: Makes the value of a choice; None keeps the text.
        any_case: Whether a choice may also be written in capital letters.
        argument: The library's argument; empty for the name of the field.
        asked: The default where a user is asked, if a request that is made in code has another one.
    """

    help: str
    metavar: str | None = None
    within: Range | None = None
    choices: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    default_text: str = ""
    reads: bool = False
    made: Callable[[str], Any] | None = None
    any_case: bool = False
    argument: str = ""
    asked: Any = None


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a request.

    Attributes:
        name: The name of the field.
        default: The default.
        kind: ``int``, ``float``, ``bool``, ``str`` or ``Path``.
        declared: Its description for front ends.
    """

    name: str
    default: Any
    kind: str
    declared: Declared

    @property
    def argument(self) -> str:
        """The library's argument, by whose name the values of the command line are too."""
        return self.declared.argument or self.name

    @property
    def flags(self) -> tuple[str, ...]:
        """Its flags on the command line, the preferred one first."""
        return self.declared.flags or (f"--{spoken(self.argument)}",)

    def words(self, value: Any) -> Iterator[str]:
        """Yields the word of the command line that sets it; none for the default."""
        if value is None or value == self.default:
            return
        flag, text = self.flags[0], getattr(value, "value", value)
        if isinstance(text, bool):
            yield flag if text else f"{flag}=false"
        else:
            yield f"{flag}={text:g}" if isinstance(text, float) else f"{flag}={text}"


def declared(default: Any, help: str, metavar: str | None = None, **more: Any) -> Any:  # noqa: A002 - as click's
    """Returns a field of a request that is an option; ``more`` are those of ``Declared``."""
    return field(default=default, metadata={_KEY: Declared(help, metavar, **more)})


def options_of(request: type[Any]) -> Iterator[Option]:
    """Yields the options of a request, in the order of their fields."""
    for each in fields(request):
        if (found := each.metadata.get(_KEY)) is not None:
            default = each.default if found.asked is None else found.asked
            yield Option(each.name, default, _kind_of(each), found)


def taken(request: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a request from the values of its options by argument.

    Those that are left out or None have the default. Nothing is checked: ``check_options`` does that.
    """
    found = {}
    for option in options_of(request):
        value, shown = values.get(option.argument), option.declared
        if value is None:
            value = option.default
        elif isinstance(value, str) and shown.choices:
            value = value.lower() if shown.any_case else value
            value = shown.made(value) if shown.made is not None and value in shown.choices else value
        elif option.kind == "Path" and isinstance(value, str | os.PathLike):
            value = Path(value)
        found[option.name] = value
    return found


def needs_system(request: type[Any]) -> bool:
    """Returns whether a request has a field ``system``: a model, and where it runs."""
    return any(each.name == "system" for each in fields(request))


def check_options(request: Any) -> None:
    """Checks the options of a request.

    Raises:
        ConfigurationError: One has another type, or is out of its range or none of its choices.
    """
    for option in options_of(type(request)):
        value, shown = getattr(request, option.name), option.declared
        if value is None or value == option.default == "":
            continue
        check_value(option.argument, value, option.kind, shown.within)
        if shown.choices and str(getattr(value, "value", value)) not in shown.choices:
            raise ConfigurationError(
                f'unknown {spoken(option.argument)} "{value}"; {suggestion(str(value), shown.choices)}'
            )


def check_value(name: str, value: Any, kind: str, within: Range | None = None) -> None:
    """Checks a value, of ``int``, ``float``, ``bool``, ``str`` or ``Path``.

    Raises:
        ConfigurationError: It has another type, or is out of its range.
    """
    known = _TYPES.get(kind, object)
    if not isinstance(value, known) or (kind in ("int", "float") and isinstance(value, bool)):
        raise ConfigurationError(f"{spoken(name)} is {value!r}; it must be {_ARTICLES[kind]}")
    if within is not None:
        check_number(name, value, within)


def given_options(request: Any) -> dict[str, Any]:
    """Returns the options of a request that differ from their defaults, as an evaluation keeps them."""
    return further(request, ())


def further(request: Any, known: Collection[str]) -> dict[str, Any]:
    """Returns the options of a request that differ from their defaults, but those that are ``known``."""
    found = {}
    for option in options_of(type(request)):
        value = getattr(request, option.name)
        if option.name not in known and value is not None and value != option.default:
            found[option.name] = getattr(value, "value", value)
    return found


def spoken(name: str) -> str:
    """Returns the name of an option in messages and flags, which is without a unit of time in seconds."""
    return name.removesuffix("_s")


_TYPES: Mapping[str, Any] = {
    "int": int,
    "float": int | float,
    "bool": bool,
    "str": str,
    "Path": os.PathLike | str,
}
_ARTICLES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "True or False",
    "str": "text",
    "Path": "the path of a file",
}


def _kind_of(each: Field[Any]) -> str:
    """Returns the option type of a field; postponed annotations are texts."""
    name = each.type if isinstance(each.type, str) else each.type.__name__
    return name.partition(" | ")[0]
