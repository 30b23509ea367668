"""Properties that the options of every command have."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from inferometer.client.cli.command import FiniteFloatRange
from inferometer.client.cli.main import cli


def _options(path: str, command: click.Command) -> Iterator[tuple[str, click.Parameter]]:
    for parameter in command.params:
        yield f"{path} {parameter.name}", parameter
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from _options(f"{path} {name}", found)


def _of_one(kind: click.ParamType) -> tuple[click.ParamType, ...]:
    return tuple(kind.types) if isinstance(kind, click.Tuple) else (kind,)


def test_no_option_takes_a_number_that_is_none() -> None:
    numbers = {
        name: kind
        for name, parameter in _options("agent", cli)
        for kind in _of_one(parameter.type)
        if isinstance(kind, type(click.FLOAT))
    }

    assert len(numbers) > 20
    assert [name for name, kind in numbers.items() if not isinstance(kind, FiniteFloatRange)] == []


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "NaN", "1e999"])
def test_a_range_has_neither_nan_nor_infinity(value: str) -> None:
    for kind in (FiniteFloatRange(), FiniteFloatRange(min=0, min_open=True)):
        with pytest.raises(click.BadParameter, match=r"not a finite number|not in the range"):
            kind.convert(value, None, None)


def test_a_range_keeps_its_bounds() -> None:
    kind = FiniteFloatRange(0, 10)

    assert kind.convert("0.05", None, None) == 0.05
    with pytest.raises(click.BadParameter, match="not in the range"):
        kind.convert("11", None, None)
