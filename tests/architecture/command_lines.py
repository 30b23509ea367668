"""Command lines in files, parsed by the program's own commands without running them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from inferometer.client.cli.main import cli
from inferometer.client.commands.bench import BenchGroup


def parsed(words: Sequence[str]) -> click.Context:
    """The context of the command that the words after ``agent`` name, with its options as click reads them.

    Raises:
        AssertionError: There is no such command.
        click.UsageError: It has no such option, or the option takes no such value.
    """
    command: click.Command = cli
    left = list(words)
    path = "agent"
    while isinstance(command, click.Group):
        assert left, f"{path} is a group"
        if left[0].startswith("-") and isinstance(command, BenchGroup):
            left = command.with_default(click.Context(command), left)
        name = left.pop(0)
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"{path} has no command {name}"
        command, path = found, f"{path} {name}"
    # click keeps the help option that the first context asks for
    return command.make_context(path, left, help_option_names=cli.context_settings["help_option_names"])
