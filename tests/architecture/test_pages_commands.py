"""Commands, options, images and the systemd unit on the pages for operators exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import click
import pytest
from command_lines import parsed

from inferometer.agent.hardware.device import DeviceKind
from inferometer.agent.inference.registry import BUILTIN
from inferometer.agent.server.server import ServerOptions
from inferometer.client.cli.main import cli

PAGES = (
    "README.md",
    "docker/README.md",
    "docs/operating.md",
    "docs/page.md",
    "docs/protocol.md",
    "docs/serving.md",
)
_DEVICES = (DeviceKind.CPU, DeviceKind.GPU)
IMAGES = {f"inferometer/{e.name.lower()}:amd64-{device.value}" for e in BUILTIN for device in _DEVICES}
VALUES = {"$SECRET": "hush", "…": "x", "$PWD": "/here"}

# Options of other programs that the pages name, and the one that click adds.
FOREIGN = {
    "--help",
    "--user",
    "--health-cmd",
    "--no-healthcheck",
    "--cpuset-cpus",
    "--cpus",
    "--profile",
    "--gpus",
}


def _typed(root: Path, page: str) -> Iterator[list[str]]:
    """The command lines in a page's blocks of shell, each as one line and without a prompt."""
    text = (root / page).read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language in ("", "console", "sh", "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                typed = re.sub(r"^(?:[\w-]+)?\$ ", "", line)
                for name, value in VALUES.items():
                    typed = typed.replace(name, value)
                if re.match(r"(\w+=\S+ )*(agent|docker run) ", typed):
                    yield shlex.split(typed, comments=True)


def _arguments(words: list[str]) -> list[str]:
    """What ``agent`` is given, in this process or in a container."""
    while "=" in words[0]:
        words = words[1:]
    if words[0] == "agent":
        return words[1:]
    (place,) = (number for number, word in enumerate(words) if word.startswith("inferometer/"))
    assert words[place] in IMAGES, words[place]
    return words[place + 1 :]


def _options(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from parameter.opts
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from _options(found)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_line_is_one_that_the_program_takes(root: Path, page: str) -> None:
    lines = list(_typed(root, page))

    assert lines or page == "docs/protocol.md"
    for words in lines:
        arguments = _arguments(words)
        if arguments and "-h" not in arguments:  # an image without arguments serves
            parsed(arguments)


@pytest.mark.parametrize("page", PAGES)
def test_every_option_that_is_named_is_one_of_a_command(root: Path, page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (root / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    named = {
        option for code in re.findall(r"`([^`]+)`", text) for option in re.findall(r"--[a-z][\w-]*", code)
    }

    assert named - FOREIGN <= set(_options(cli))


def test_the_unit_runs_a_command_of_the_program_and_gives_it_the_time_to_stop(root: Path) -> None:
    (unit,) = re.findall(
        r"```ini\n(.*?)```", (root / "docs" / "operating.md").read_text(encoding="utf-8"), re.DOTALL
    )
    content = ConfigParser(interpolation=None)
    content.optionxform = str  # type: ignore[assignment,method-assign] # names keep their case
    content.read_string(unit)
    service = content["Service"]
    program, *words = shlex.split(service["ExecStart"])
    served = parsed(words)

    assert Path(program).name == "agent"
    assert served.info_name == "agent serve"
    assert served.params["port"] == ServerOptions().port
    assert float(service["TimeoutStopSec"]) > served.params["grace_s"]
    assert set(re.findall(r"(AGENT_\w+)=", service["Environment"])) == {"AGENT_DATA_DIR", "AGENT_CACHE_DIR"}
