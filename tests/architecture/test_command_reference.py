"""docs/commands.md matches the commands."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from inferometer.client.cli.command import is_global
from inferometer.client.cli.main import cli
from tools.command_reference import page


def _commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from _commands(f"{path} {name}", found)


def test_the_committed_page_is_what_the_commands_say(root: Path) -> None:
    committed = (root / "docs" / "commands.md").read_text(encoding="utf-8")

    assert committed == page(), "docs/commands.md is out of date; run: make docs"


def test_the_page_has_every_command_with_every_option() -> None:
    sections = dict(re.findall(r"^## `(agent[^`]*)`\n(.*?)(?=^## |\Z)", page(), re.MULTILINE | re.DOTALL))
    (shared,) = re.findall(r"^## Global options\n(.*?)(?=^## )", page(), re.MULTILINE | re.DOTALL)

    expected = {path: command for path, command in _commands("agent", cli) if path != "agent"}
    assert set(sections) == set(expected)
    for path, command in expected.items():
        options = [
            o for o in command.params if isinstance(o, click.Option) and not o.hidden and not o.is_eager
        ]
        for option in options:
            place = shared if is_global(option) else sections[path]
            assert re.search(rf"^\| `[^`]*{re.escape(option.opts[-1])}\b", place, re.MULTILINE), (
                path,
                option.name,
            )


def test_the_page_does_not_depend_on_the_terminal_or_the_environment(root: Path) -> None:
    environment = {"COLUMNS": "40", "AGENT_ADDRESS": "elsewhere:1", "AGENT_SECRET": "hush", "LC_ALL": "C"}
    command = [sys.executable, "-m", "tools.command_reference", "--check"]

    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
