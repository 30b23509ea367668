"""Validates command lines that run later or on another machine, so that errors show before they run."""

from __future__ import annotations

from collections.abc import Sequence

import click

from inferometer.manifests.errors import ConfigurationError


def parsed_command(words: Sequence[str]) -> click.Context:
    """Parses the words after ``agent``, and returns the click context of the command with its parameters.

    Raises:
        ConfigurationError: The words are not a valid command line of ``agent``.
    """
    command, path, left = _found(words)
    try:
        return command.make_context(path, left)
    except click.ClickException as error:
        raise ConfigurationError(f"{path}: {error.format_message()}") from error


def named_command(words: Sequence[str]) -> click.Command:
    """Returns the command that the words after ``agent`` name, without parsing its options.

    Raises:
        ConfigurationError: The words name no command.
    """
    return _found(words)[0]


def _found(words: Sequence[str]) -> tuple[click.Command, str, list[str]]:
    """Returns the command, the words that name it as one text, and the remaining words."""
    from inferometer.client.cli.main import cli
    from inferometer.client.commands.bench import BenchGroup

    command: click.Command = cli
    path, left = "agent", list(words)
    try:
        while isinstance(command, click.Group):
            context = click.Context(command, info_name=path)
            if isinstance(command, BenchGroup):
                left = command.with_default(context, left)
            if not left or left[0].startswith("-"):
                raise ConfigurationError(
                    f"{path}: no command is named; begin with one, and put options after it"
                )
            name, found, left = command.resolve_command(context, left)
            if found is None:
                raise ConfigurationError(f'{path}: there is no command "{name}"')
            command, path = found, f"{path} {name}"
        return command, path, left
    except click.ClickException as error:
        raise ConfigurationError(f"{path}: {error.format_message()}") from error
