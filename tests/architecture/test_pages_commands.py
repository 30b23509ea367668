"""Commands, options, images and the systemd unit on the pages exist; no block of commands goes untested."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser
from functools import cache
from pathlib import Path

import click
import pytest
from command_lines import parsed

from inferometer.agent.hardware.environment import DeviceKind
from inferometer.agent.inference.registry import BUILTIN
from inferometer.agent.server.server import ServerOptions
from inferometer.client.cli.main import cli
from tests.page_blocks import Typed, blocks

ROOT = Path(__file__).parents[2]
GENERATED = "docs/commands.md"  # test_command_reference.py
PAGES = sorted(
    str(page.relative_to(ROOT))
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/*.md", "docker/README.md")
    for page in ROOT.glob(pattern)
    if str(page.relative_to(ROOT)) != GENERATED
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
    "--shared-memory",
    "--gpus",
    "--check",  # of tools/train_digits_cnn.py
    "--enable_cuda_profiling",  # of ONNX Runtime's build
    # as opperf spells options that we, too, accept so
    "--int64-tensor",
    "--output-file",
    "--output-format",
    # of srun
    "--nodes",
    "--ntasks-per-node",
    "--cpus-per-task",
    "--distribution",
    "--kill-on-bad-exit",
    # of sbatch
    "--gres",
    "--test-only",
    # of pip
    "--no-index",
    "--find-links",
    # of torchrun
    "--nnodes",
    "--nproc-per-node",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--no-python",
}


def _typed(page: str) -> Iterator[list[str]]:
    """The command lines of ``agent`` and of ``docker run`` on a page, as words."""
    for block in blocks(ROOT / page):
        for typed in block.commands if block.language == "console" else ():
            line = typed.line
            for name, value in VALUES.items():
                line = line.replace(name, value)
            words = Typed(line, typed.host, ()).words
            if words[0] == "agent" or words[:2] == ["docker", "run"]:
                yield words


def _arguments(words: list[str]) -> list[str]:
    """What ``agent`` is given, in this process or in a container."""
    while "=" in words[0]:
        words = words[1:]
    if words[0] == "agent":
        return words[1:]
    (place,) = (number for number, word in enumerate(words) if word.startswith("inferometer/"))
    assert words[place] in IMAGES, words[place]
    return words[place + 1 :]


@cache
def _known_options() -> frozenset[str]:
    return frozenset(_options(cli))


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
def test_every_command_line_is_one_that_the_program_takes(page: str) -> None:
    for words in _typed(page):
        arguments = _arguments(words)
        if arguments and "-h" not in arguments:  # an image without arguments serves
            parsed(arguments)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_commands_says_that_it_is_one(page: str) -> None:
    """Those of ``console`` without a reason not to run are run by tests/cli/test_page_runs.py."""
    for block in blocks(ROOT / page):
        if block.language == "console":
            first = next(block.commands, None)
            prompt = f"{first.host}$ " if first else "no prompt"
            assert block.text.startswith(prompt), f"{block.place} begins without a prompt"
            assert block.key in ("", "not run", "exits with"), f"{block.place}: {block.key}"
            assert bool(block.key) == bool(block.value.strip()), f"{block.place} has no reason"
        else:
            assert not block.shows_commands, f"{block.place} shows commands: ```console, each after a prompt"
            assert block.key in ("", "file"), f"{block.place}: {block.key}"


def test_every_mark_stands_before_a_block() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        marks = re.findall(r"^<!-- (?:not run|exits with|file):", text, re.MULTILINE)
        assert len(marks) == sum(bool(block.key) for block in blocks(ROOT / page)), page


@pytest.mark.parametrize(
    ("text", "shows"),
    [
        ("agent info models", True),
        ("gpu-host$ nvidia-smi", True),
        ("AGENT_SECRET=x agent info models", True),
        ("agent: gpu-host:50051", False),
        ("conditions  disturbed", False),
    ],
)
def test_a_command_in_another_block_is_found(tmp_path: Path, text: str, shows: bool) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```\n{text}\n```\n", encoding="utf-8")

    assert [block.shows_commands for block in blocks(page)] == [shows]


@pytest.mark.parametrize("page", PAGES)
def test_every_option_that_is_named_is_one_of_a_command(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    named = {
        option for code in re.findall(r"`([^`]+)`", text) for option in re.findall(r"--[a-z][\w-]*", code)
    }

    assert named - FOREIGN <= _known_options()


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
