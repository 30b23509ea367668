"""Options as fields of requests: their declarations, ranges and defaults, for every front end.

A request field made by ``declared`` is a command-line option and a library argument. Its flag is its name
without the ``_s`` suffix, unless it declares other flags. All front ends show, check and reject options in
the same way. The module imports little, because the help of the command line shows the options.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from enum import Enum, IntEnum
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from inferometer.manifests.errors import ConfigurationError

MOST_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Range:
    """A range of finite numbers.

    Attributes:
        least: The lower end.
        most: The upper end; None for none.
        open: Whether the ends are excluded.
        closed_above: Whether ``open`` excludes only the lower end.
    """

    least: float
    most: float | None = None
    open: bool = False
    closed_above: bool = False

    @property
    def leaves_out_most(self) -> bool:
        """Whether the upper end is excluded."""
        return self.open and not self.closed_above

    def __contains__(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        above = value > self.least if self.open else value >= self.least
        return above and (
            self.most is None or value < self.most or (value == self.most and not self.leaves_out_most)
        )

    def __str__(self) -> str:
        least = f"{'above' if self.open else 'at least'} {self.least}"
        if self.most is None:
            return least
        return f"{least} and {'below' if self.leaves_out_most else 'at most'} {self.most}"


POSITIVE, NOT_NEGATIVE, COUNT = Range(0, open=True), Range(0), Range(1)
SEED = Range(0, MOST_SEED)
COMPARISON = {"threshold": Range(0, 10), "accuracy_threshold": Range(0, 10)}
"""The allowed ranges of a comparison's numeric options."""


def check(request: object, ranges: Mapping[str, Range]) -> None:
    """Checks that the numbers of a request are within their ranges."""
    for name, allowed in ranges.items():
        check_number(name, getattr(request, name, None), allowed)


def check_number(name: str, value: float | None, allowed: Range) -> None:
    """Checks that a number is within its range; None means that it is not given.

    Raises:
        ConfigurationError: It is outside its range; the message gives its name without the ``_s`` suffix.
    """
    if value is not None and value not in allowed:
        raise ConfigurationError(f"{name.removesuffix('_s')} is {value}; it must be {allowed}")


class SharedMemoryUse(Enum):
    """When tensors are passed to a server on this host in shared memory: if possible, never, or always."""

    AUTO = "auto"
    OFF = "off"
    ON = "on"


OPEN_TIMEOUT_S = 300.0
"""How long an agent may take to open a model, including any download."""
ANSWER_TIMEOUT_S = 300.0
"""How long an agent may take to answer one batch."""
MODEL = "DigitsCNN"
LANGUAGE_MODEL = "ToyLlama"
BATCH_SIZE = 64
TOP_CLASSES = 100
"""The number of best classes kept for each input; the log loss requires all of them."""
TARGET_CI_PERCENT = 5.0
"""The default target for the half-width of the interval of p50, in percent of p50."""
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
"""The number of cores that a model in this process leaves to the thread that sends its queries."""
TRACE_SAMPLE = 0.01
"""The share of the queries under load that are traced if their spans are sent to a collector."""
SERVER_STATISTICS_HZ = 2.0
"""How often per second the statistics of a server under load are read."""
THRESHOLD = 0.05
"""The relative difference that a comparison tolerates in times and rates."""
ACCURACY_THRESHOLD = 0.01
"""The relative difference that a comparison tolerates in top-1 accuracy."""
BENCH_BATCH_SIZE = 16
"""The default of DLBS's ``exp.replica_batch``."""
BENCH_BATCHES = 100
BENCH_WORKERS = 4
BENCH_PREFETCH = 10
MXNET, PYTORCH = "mxnet", "pytorch"
"""The names of the frameworks that support training, in lower case."""
KV_STORES = ("local", "device", "dist_sync", "dist_device_sync", "dist_async", "nccl", "horovod")
"""The ways in which MXNet sums gradients."""
DIST_BACKENDS = ("gloo", "nccl", "mpi")
"""The ways in which PyTorch sums gradients."""
OPERATOR_DTYPES = ("float32", "float", "float64", "float16", "bfloat16", "int8", "int32", "int64")
OPERATOR_VALUES = ("table", "zeros", "ones")
"""The element types and input values of operators; the first of each is the default."""


_KEY = "declared"


@dataclass(frozen=True, slots=True)
class Declared:
    """The description of an option for front ends.

    Attributes:
        help: A sentence that describes it.
        metavar: The placeholder for its value, such as ``S`` for seconds.
        within: The allowed range of the number, or of each of several; None if there is none.
        choices: The allowed strings; empty if any string is allowed.
        ignores_case: Whether the case of a choice does not matter.
        flags: Its flags; empty for a single flag derived from its name.
        argument: The library's argument; empty for the name of the field.
        variable: The environment variable that sets it; None for none.
        default_text: The default shown in the help if front ends pass None for an option that is not given.
        reads: Whether the value names a file that is read.
        made: Converts a string to the value, or raises ConfigurationError; None keeps the string.
        front_default: The default of front ends; ``...`` for the default of the request's field.
        tasks: The tasks that have the option; empty for all.
        heading: The heading above it in a long help; empty for that of its request.
    """

    help: str
    metavar: str | None = None
    within: Range | None = None
    choices: tuple[str, ...] = ()
    ignores_case: bool = False
    flags: tuple[str, ...] = ()
    argument: str = ""
    variable: str | None = None
    default_text: str = ""
    shows_default: bool = True
    reads: bool = False
    made: Callable[[str], Any] | None = None
    front_default: Any = ...
    tasks: tuple[str, ...] = ()
    heading: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a request.

    Attributes:
        default: The default; ``MISSING`` if there is none.
        kind: ``int``, ``float``, ``bool``, ``str``, ``Path`` or another type's name.
        declared: Its description for front ends.
    """

    name: str
    default: Any
    kind: str
    declared: Declared

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags on the command line, with the preferred one first."""
        return self.declared.flags or (f"--{spoken(self.name)}",)

    @property
    def argument(self) -> str:
        """The name of the library's argument."""
        return self.declared.argument or self.name

    @property
    def asked(self) -> Any:
        """The value in a front end if the option is not given; None if its default is set elsewhere."""
        if self.declared.front_default is not ...:
            return self.declared.front_default
        return None if self.declared.default_text or self.is_required else self.default

    @property
    def is_required(self) -> bool:
        """Whether the option is required."""
        return self.default is MISSING and not self.declared.default_text

    def made(self, value: Any) -> Any:
        """Converts a value given to a front end to the value of the field.

        Raises:
            ConfigurationError: The value is not one of the choices.
        """
        if type(value) not in (int, float, bool) and isinstance(value, Real) and self.kind in _NUMBERS:
            return int(value) if isinstance(value, Integral) else float(value)  # NumPy's cannot be stored
        if self.declared.made is not None and isinstance(value, str):
            return self.declared.made(value)
        if self.declared.ignores_case and isinstance(value, str):
            return value.lower()
        return Path(value) if self.kind == "Path" and isinstance(value, str) else value

    def words(self, value: Any, *, whole: bool = False) -> Iterator[str]:
        """Yields the command-line word that sets the option, if given; with ``whole``, even to a default."""
        if value is None or (value == self.asked and not whole):
            return
        flag, text = next(each for each in self.flags if each.startswith("--")), plain(value)
        if isinstance(text, list | tuple):
            text = ",".join(map(str, text))
        if isinstance(text, bool):
            yield flag if text and self.asked is not None else f"{flag}={str(text).lower()}"
        else:
            yield f"{flag}={text:g}" if isinstance(text, float) else f"{flag}={text}"


def declared(default: Any, help: str, metavar: str | None = None, **more: Any) -> Any:  # noqa: A002 - as click's
    """Returns a request field that is an option; ``more`` are further fields of ``Declared``.

    ``MISSING`` means no default; a front end may still have one, which ``default_text`` describes.
    """
    return field(default=default, metadata={_KEY: Declared(help, metavar, **more)})


def like(name: str, of: type[Any], **changed: Any) -> Any:
    """Returns a field with another request's declaration of an option; ``changed`` may have a ``default``."""
    [option] = (each for each in options_of(of) if each.name == name)
    default = changed.pop("default", option.default)
    return field(default=default, metadata={_KEY: replace(option.declared, **changed)})


def options_of(request: type[Any]) -> Iterator[Option]:
    """Yields the options of a request, in the order of their fields."""
    for each in fields(request):
        if (found := each.metadata.get(_KEY)) is not None:
            yield Option(each.name, each.default, _kind_of(each), found)


def values_of(
    request: type[Any], given: MutableMapping[str, Any], *, arguments: bool = False
) -> dict[str, Any]:
    """Removes a request's options from the values given to a front end, and returns the request's fields.

    Args:
        request: The class of the request.
        given: The values by field name; None for an option that is not given.
        arguments: Whether the names are the library's argument names instead.
    """
    found = {}
    for option in options_of(request):
        value = given.pop(option.argument if arguments else option.name, None)
        if value is None and option.declared.front_default is not ...:
            value = option.declared.front_default
        if value is not None:
            found[option.name] = option.made(value)
    return found


def words(values: Mapping[str, Any], *requests: type[Any], whole: bool = False) -> Iterator[str]:
    """Yields the command-line words that set options of requests, in the order of ``values``.

    Of options with the same name, that of the last request is used. See ``Option.words`` for ``whole``.
    """
    known = {option.name: option for request in requests for option in options_of(request)}
    for name, value in values.items():
        if name in known:  # of what is stored, another version may have other options
            yield from known[name].words(value, whole=whole)


def plain(value: Any) -> Any:
    """Returns the value of an option as front ends write it: a choice is written as its text."""
    return value.name if isinstance(value, IntEnum) else getattr(value, "value", value)


def needs_system(request: type[Any]) -> bool:
    """Returns whether a request has a field ``system``: a model, and where it runs."""
    return any(each.name == "system" for each in fields(request))


def check_options(request: Any) -> None:
    """Checks the options of a request.

    Raises:
        ConfigurationError: A value has the wrong type, is out of its range, or is not one of its choices.
    """
    for option in options_of(type(request)):
        value, shown = getattr(request, option.name), option.declared
        if value is None or value == option.default == "":
            continue
        check_value(option.argument, value, option.kind, shown.within)
        if shown.choices and shown.made is None and str(plain(value)) not in shown.choices:
            raise ConfigurationError(
                f'unknown {spoken(option.argument)} "{value}"; known: {", ".join(shown.choices)}'
            )


def check_value(name: str, value: Any, kind: str, within: Range | None = None) -> None:
    """Checks the type and the range of a value; its kind is as in ``Option``.

    Raises:
        ConfigurationError: It has the wrong type, or is out of its range.
    """
    known = _TYPES.get(kind, object)
    number = isinstance(value, int | float) and not isinstance(value, Enum)
    wrong = isinstance(value, bool) if kind in _NUMBERS else number and kind not in _TYPES
    if wrong or not isinstance(value, known):
        article = _ARTICLES.get(kind, "a list" if kind.startswith(("tuple", "Sequence")) else "text")
        raise ConfigurationError(f"{spoken(name)} is {value!r}; it must be {article}")
    if within is not None and kind.startswith("tuple["):
        for number in value:
            check_value(name, number, kind[len("tuple[") :].partition(",")[0], within)
    elif within is not None and not isinstance(value, str):
        check_number(name, value, within)


def given_options(request: Any) -> dict[str, Any]:
    """Returns the options of a request that differ from their defaults, as stored in an evaluation."""
    return further(request, ())


def further(request: Any, known: Collection[str]) -> dict[str, Any]:
    """Returns the options of a request that differ from their defaults, except those that are ``known``."""
    found = {}
    for option in options_of(type(request)):
        value = getattr(request, option.name)
        if option.name not in known and value is not None and value != option.default:
            found[option.name] = plain(value)
    return found


def spoken(name: str) -> str:
    """Returns the name of an option in messages and flags, without the ``_s`` suffix that marks seconds."""
    return name.removesuffix("_s")


_NUMBERS = ("int", "float", "int | str")
_TYPES: Mapping[str, Any] = {
    "int": Integral,
    "float": Real,
    "int | str": (Integral, str),
    "bool": bool,
    "str": str,
    "Path": os.PathLike | str,
}
_ARTICLES = {
    "int": "a whole number",
    "int | str": "a whole number or text",
    "float": "a number",
    "bool": "True or False",
    "str": "text",
    "Path": "the path of a file",
}


def _kind_of(each: Field[Any]) -> str:
    """Returns the option type of a field; postponed annotations are strings."""
    name = each.type if isinstance(each.type, str) else each.type.__name__
    return "int | str" if name.startswith("int | str") else name.partition(" | ")[0]
