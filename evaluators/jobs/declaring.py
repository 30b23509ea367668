"""Options as fields of requests: one declaration, from which every front end shows and checks them.

A field of a request that is made by ``declared`` is an option of the command line and an argument of the
library. Its flag is its name without the unit of time, unless it names others. The module imports little,
because the help of the command line shows the options.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from inferometer.evaluators.jobs.ranges import Range, check_number
from inferometer.manifests.errors import ConfigurationError

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
    """

    help: str
    metavar: str | None = None
    within: Range | None = None
    choices: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    default_text: str = ""
    reads: bool = False
    made: Callable[[str], Any] | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a request.

    Attributes:
        name: The name of the field, and of the library's argument.
        default: The default.
        kind: ``int``, ``float``, ``bool``, ``str`` or ``Path``.
        declared: Its description for front ends.
    """

    name: str
    default: Any
    kind: str
    declared: Declared

    @property
    def flags(self) -> tuple[str, ...]:
        """Its flags on the command line, the preferred one first."""
        return self.declared.flags or (f"--{spoken(self.name)}",)

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
            yield Option(each.name, each.default, _kind_of(each), found)


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
        if value is None:
            continue
        known = _TYPES.get(option.kind, object)
        if not isinstance(value, known) or (option.kind in ("int", "float") and isinstance(value, bool)):
            raise ConfigurationError(
                f"{spoken(option.name)} is {value!r}; it must be {_ARTICLES[option.kind]}"
            )
        if shown.within is not None:
            check_number(option.name, value, shown.within)
        if shown.choices and str(getattr(value, "value", value)) not in shown.choices:
            raise ConfigurationError(
                f'unknown {spoken(option.name)} "{value}"; known: {", ".join(shown.choices)}'
            )


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
