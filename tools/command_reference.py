"""Generator of docs/commands.md: every command with its options, as click shows them.

python -m tools.command_reference            write the page
python -m tools.command_reference --check    fail if the page is out of date
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from inferometer.client.cli.command import is_global
from inferometer.client.cli.main import PROGRAM, cli

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
MEND = "run: make docs"
_HEAD = f"""# Commands

<!-- Generated from the commands; do not edit. To regenerate it, {MEND} -->

Options start with one or two dashes; their value follows `=` or a space. An option without a value, such as
`--gpu`, is a boolean: `--gpu`, `--gpu=true` and `--gpu=false` all work. `agent --version` prints the version.
[configuration.md](configuration.md) describes the configuration file, environment variables and exit codes.
"""
_UNWRAPPED = "\b"  # before a paragraph, it tells click not to wrap the lines


def page() -> str:
    """Returns the page."""
    parts = [_HEAD]
    for path, command in _commands(PROGRAM, cli):
        if path == PROGRAM:
            parts += [_section("Global options", _GLOBAL_INTRODUCTION), _options(path, command, shared=True)]
            continue
        parts.append(_section(f"`{path}`", _usage(path, command)))
        parts.append(_help(command))
        parts.append(_options(path, command, shared=False))
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


_GLOBAL_INTRODUCTION = "Every command accepts these options, in any position."


def _commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yields every command and group that is not hidden, with its full name."""
    yield path, command
    if isinstance(command, click.Group):
        context = _context(path, command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from _commands(f"{path} {name}", found)


def _context(path: str, command: click.Command) -> click.Context:
    """Creates a context like the program's: a command keeps the help option of its first context."""
    return click.Context(command, info_name=path, help_option_names=cli.context_settings["help_option_names"])


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}"


def _usage(path: str, command: click.Command) -> str:
    pieces = command.collect_usage_pieces(_context(path, command))
    return f"```\n{' '.join([path, *pieces])}\n```"


def _help(command: click.Command) -> str:
    paragraphs = inspect.cleandoc(command.help or "").partition("\f")[0].split("\n\n")
    return "\n\n".join(
        "```\n" + paragraph.removeprefix(_UNWRAPPED).strip("\n") + "\n```"
        if paragraph.startswith(_UNWRAPPED)
        else " ".join(paragraph.split())
        for paragraph in paragraphs
    )


def _options(path: str, command: click.Command, *, shared: bool) -> str:
    """Returns a table of the command's own options, or of the shared ones."""
    context = _context(path, command)
    rows = [
        (record[0], _meaning(parameter, record[1]))
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and shared == is_global(parameter) and not parameter.is_eager
        if (record := parameter.get_help_record(context))
    ]
    if not rows:
        return ""
    lines = [f"| `{_cell(names)}` | {_cell(text)} |" for names, text in rows]
    return "\n".join(["| option | meaning |", "|---|---|", *lines])


def _meaning(option: click.Option, text: str) -> str:
    """Returns the help of an option, with its environment variable."""
    if not option.envvar or option.show_envvar:
        return text
    return f"{text} [env var: {option.envvar}]"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """Writes or checks the page."""
    parser = argparse.ArgumentParser(description="Write docs/commands.md from the commands.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if it is out of date")
    fresh = page()
    if not parser.parse_args().check:
        PAGE.write_text(fresh, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != fresh:
        sys.exit(f"{PAGE.name} is out of date; {MEND}")


if __name__ == "__main__":
    main()
