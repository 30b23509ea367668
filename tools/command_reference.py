"""Generator of docs/commands.md: every command with its options, as click shows them.

Options that several commands share are listed once, in a section of their own.

python -m tools.command_reference            write the page
python -m tools.command_reference --check    fail if the page is out of date
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from inferometer.client.cli.command import database_options, grouped, is_global, tls_options
from inferometer.client.cli.main import PROGRAM, cli
from inferometer.client.cli.options import (
    dataset_options,
    request_options,
    system_options,
    system_options_beside,
)
from inferometer.client.cli.output import destination_options, output_options, printing_options
from inferometer.client.commands.bench import data_options, model_options, result_options, training_options
from inferometer.client.commands.evaluation import filter_options
from inferometer.client.commands.predict import evaluation_options, load_options, tuning_options
from inferometer.evaluators.kinds.generation.request import GenerationRequest
from inferometer.evaluators.kinds.tuning.request import TuningRequest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
MEND = "run: make docs"
_HEAD = f"""# Commands

<!-- Generated from the commands; do not edit. To regenerate it, {MEND} -->

Options start with one or two dashes; their value follows `=` or a space. An option without a value, such as
`--gpu`, is a boolean: `--gpu`, `--gpu=true` and `--gpu=false` all work. `agent --version` prints the version.
[configuration.md](configuration.md) describes the configuration file, environment variables and exit codes.
"""
_SHARED = {
    "benchmark model options": model_options,
    "benchmark data options": data_options,
    "benchmark training options": training_options,
    "benchmark result options": result_options,
    "evaluation options": evaluation_options,
    "load options": load_options,
    "generation options": request_options(
        GenerationRequest, ("concurrency", "saturate", "think_time_s", "replay", "duration_s", "max_queries")
    ),
    "tuning options": tuning_options,
    "system options": system_options,
    "system options but threads and dtype": system_options_beside(TuningRequest),
    "filter options": filter_options,
    "output options": output_options,
    "printing options": printing_options,
    "destination options": destination_options,
    "dataset options": dataset_options,
    "TLS options": tls_options,
    "database options": database_options,
}
"""The groups of options that several commands accept; one that contains another comes before it."""
_FEW = 12
"""The number of options that are listed in one table."""
_UNWRAPPED = "\b"  # before a paragraph, it tells click not to wrap the lines


def page() -> str:
    """Returns the page."""
    made = {title: click.command()(add(_nothing)) for title, add in _SHARED.items()}
    shared = {title: dict(_records(title, command)) for title, command in made.items()}
    parts = [_HEAD]
    for path, command in _commands(PROGRAM, cli):
        if path == PROGRAM:
            parts += [_section("Global options", _GLOBAL_INTRODUCTION), _table(_records(path, command, True))]
            continue
        parts += [_section(f"`{path}`", _usage(path, command)), _help(command)]
        parts += _options(path, command, shared)
    parts.append(_section("Shared options", _SHARED_INTRODUCTION))
    for title in sorted(shared, key=str.lower):
        others = {other: o for other, o in shared.items() if other != title}
        parts += [f"### {title[0].upper()}{title[1:]}", *_options(title, made[title], others)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


_GLOBAL_INTRODUCTION = "Every command accepts these options, in any position."
_SHARED_INTRODUCTION = "Options that several commands accept; each command above names those that it accepts."


def _nothing(**given: object) -> None:
    """Stands in for a command, to which shared options are added."""


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


def _records(path: str, command: click.Command, globally: bool = False) -> Iterator[tuple[str, str]]:
    """Yields the names and the meaning of the command's own options, or of the global ones."""
    context = _context(path, command)
    for parameter in command.get_params(context):
        if (
            isinstance(parameter, click.Option)
            and globally == is_global(parameter)
            and not parameter.is_eager
            and (record := parameter.get_help_record(context))
        ):
            yield record[0], _meaning(parameter, record[1])


def _options(path: str, command: click.Command, shared: dict[str, dict[str, str]]) -> Iterator[str]:
    """Yields tables of the options that only this command accepts, and a line naming the shared ones."""
    records = dict(_records(path, command))
    left, named = records.items(), []
    for title, group in shared.items():
        if group.items() <= records.items() and not group.items().isdisjoint(left):
            left -= group.items()
            named.append(title)
    context, own = _context(path, command), {name for name, _ in left}
    tables: dict[str, list[str]] = {}
    for heading, parameters in grouped(command, context).items():
        names = [name for each in parameters if (name := (each.get_help_record(context) or ("",))[0]) in own]
        tables.setdefault(f"**{heading}**" if len(own) > _FEW else "", []).extend(names)
    for title, names in tables.items():
        if names:
            yield title
            yield _table((name, records[name]) for name in names)
    links = [f"[{title}](#{title.lower().replace(' ', '-')})" for title in sorted(named, key=str.lower)]
    if links:
        several = ", ".join(links[:-1]) + " and " + links[-1] if links[1:] else links[0]
        yield f"{'Also accepts' if left else 'Accepts'} the {several}."


def _table(records: Iterable[tuple[str, str]]) -> str:
    lines = [f"| `{_cell(names)}` | {_cell(text)} |" for names, text in records]
    return "\n".join(["| option | meaning |", "|---|---|", *lines]) if lines else ""


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
