"""docs/commands.md matches the commands."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from inferometer.client.cli.command import grouped, is_global
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


def _sections(level: str) -> dict[str, str]:
    """The texts under the headings of a level, up to the next heading of any level."""
    return dict(re.findall(rf"^{level} (.*)\n((?:(?!##).*\n?)*)", page(), re.MULTILINE))


def _accepted(text: str, shared: dict[str, str]) -> str:
    """The text of a section with those of the shared options that it links, directly or through them."""
    links = re.findall(r"\]\(#([\w-]+)\)", text)
    return text + "".join(_accepted(shared[link], shared) for link in links)


def test_the_page_has_every_command_with_every_option() -> None:
    sections = {name.strip("`"): text for name, text in _sections("##").items()}
    shared = {title.lower().replace(" ", "-"): text for title, text in _sections("###").items()}
    everywhere, _ = sections.pop("Global options"), sections.pop("Shared options")

    expected = {path: command for path, command in _commands("agent", cli) if path != "agent"}
    assert set(sections) == set(expected)
    for path, command in expected.items():
        text = _accepted(sections[path], shared)
        options = {
            o.opts[-1]: is_global(o)
            for o in command.params
            if isinstance(o, click.Option) and not o.hidden and not o.is_eager
        }
        for name, is_everywhere in options.items():
            place = everywhere if is_everywhere else text
            assert re.search(rf"^\| `[^`]*{re.escape(name)}\b", place, re.MULTILINE), (path, name)
        rows = re.findall(r"^\| `", text, re.MULTILINE)
        assert len(rows) == sum(not is_everywhere for is_everywhere in options.values()), path


def test_a_long_help_is_in_groups_of_at_most_twenty_options() -> None:
    for path, command in _commands("agent", cli):
        sizes = {heading: len(found) for heading, found in grouped(command, click.Context(command)).items()}
        assert max(sizes.values()) <= 20, (path, sizes)
        assert len(sizes) > 2 or sum(sizes.values()) - sizes["Global options"] <= 20, (path, sizes)


def test_the_help_and_the_page_have_the_same_groups() -> None:
    shown = CliRunner().invoke(cli, ["bench", "training", "--help"]).output
    headings = re.findall(r"^([A-Z][\w ]*):$", shown, re.MULTILINE)

    assert headings == [
        *("Model and device", "Data", "Measurement", "Several devices or processes", "Accepted for DLBS"),
        *("Output", "Global options"),
    ]
    own, everywhere = headings[:-1], headings[-1]
    assert set(own) <= set(re.findall(r"^\*\*(.*)\*\*$", page(), re.MULTILINE))
    assert f"## {everywhere}" in page()


@pytest.mark.parametrize(
    ("path", "options", "heading"),
    [
        ((), ["--version"], "Options"),
        (("bench",), ["--help"], "Global options"),
        (("predict", "urls"), ["--urls_file_path", "--duplicate_input"], "Data"),
        (("predict", "dataset"), ["--trace_level"], "Measurement"),
        (("bench", "training"), ["--trace_level"], "Measurement"),
    ],
)
def test_an_option_is_under_the_heading_of_its_subject(
    path: tuple[str, ...], options: list[str], heading: str
) -> None:
    command = dict(_commands("agent", cli))[" ".join(["agent", *path])]
    found = grouped(command, click.Context(command, help_option_names=["--help"]))[heading]

    assert set(options) <= {name for option in found for name in option.opts}


def test_an_option_that_commands_share_stands_once() -> None:
    names = "database_address|tls_server_name|open_timeout|no_header|arrival|initial_qps"
    rows = re.findall(rf"^\| `--(?:{names})\b.*", page(), re.MULTILINE)

    assert len(rows) == len(set(rows))
    assert len(rows) > 5


def test_the_page_does_not_depend_on_the_terminal_or_the_environment(root: Path) -> None:
    environment = {"COLUMNS": "40", "AGENT_ADDRESS": "elsewhere:1", "AGENT_SECRET": "hush", "LC_ALL": "C"}
    command = [sys.executable, "-m", "tools.command_reference", "--check"]

    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
