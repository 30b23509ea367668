"""``agent plan check``: the cells that cannot run, found by the commands that they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

import click

from inferometer.client.cli.invocation import Invocation
from inferometer.client.evaluating.console import say
from inferometer.client.plan.asking import PlanRequest
from inferometer.evaluators.plans.software.command import check_software
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import InferometerError, one_line, suggestion

_WRONG = 2
_RUN = ("predict", "bench", "op")


def check_cells(invocation: Invocation, request: PlanRequest) -> int:
    """Says what is wrong with the cells of a plan, and returns the exit code."""
    command = _command_of(request.plan.command)
    skipped = len(request.plan.command.split())
    problems: Counter[str] = Counter()
    proven: set[str] = set()  # a command looks at each option by itself, so that a value is right everywhere
    for cell in request.cells:
        words = cell.argv[skipped:]
        if not proven.issuperset(words):
            found = list(_problems(invocation, command, words))
            problems.update(found)
            proven.update(() if found else words)
    problems.update(check_software(request.plan, request.cells))
    for problem, count in problems.items():
        say(f"{problem} ({count} of {len(request.cells)} cells)")
    if problems:
        return _WRONG
    say(f"checked     {len(request.cells)} cells: none is known that cannot run")
    return 0


def _command_of(words: str) -> click.Command:
    """The command that the cells run."""
    from inferometer.client.cli.main import cli

    found: click.Command = cli
    context = click.Context(cli)
    for place, word in enumerate(words.split()):
        known = found.list_commands(context) if isinstance(found, click.Group) else []
        wanted = known if place else [name for name in known if name in _RUN]
        command = found.get_command(context, word) if isinstance(found, click.Group) else None
        if command is None or word not in wanted:
            raise _unknown(words, word, wanted)
        found = command
    if isinstance(found, click.Group):
        raise _unknown(words, "", found.list_commands(context))
    return found


def _unknown(words: str, word: str, known: list[str]) -> InferometerError:
    from inferometer.manifests.errors import ConfigurationError

    what = f'no command "{word}" for cells' if word else "that is a group of commands"
    return ConfigurationError(f'command "{words}": {what}; {suggestion(word, known)}')


def _problems(invocation: Invocation, command: click.Command, words: Sequence[str]) -> Iterator[str]:
    """What keeps a cell from running, each in one line without the cell."""
    try:
        context = command.make_context(command.name, list(words))
    except click.ClickException as error:
        yield one_line(error.format_message())
        return
    except InferometerError as error:
        yield one_line(error)
        return
    model = context.params.get("model_name")
    if isinstance(model, str) and model and (problem := _unknown_model(invocation.catalog, model)):
        yield problem


@cache
def _unknown_model(catalog: Catalog, name: str) -> str:
    """Why there is no such model; empty if there is."""
    try:
        catalog.find_models(name)
    except InferometerError as error:
        return one_line(error)
    return ""
