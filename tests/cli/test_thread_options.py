"""The threads of an operator on the command line: here, at an agent, and in what is stored and shown."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferometer.agent.hardware.environment import default_threads
from inferometer.manifests.files import BUILTIN
from tests.cli.conftest import Agent, served

DIGITS = BUILTIN / "datasets" / "digits_validation" / "digits_validation.zip"
DATASET = ("predict", "dataset", "--num_file_parts=1", "--batch_size=8")
MORE = default_threads() + 1
"""A number of threads that is nobody's default."""


@pytest.fixture
def image(tmp_path: Path) -> str:
    with zipfile.ZipFile(DIGITS) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".png"))
        return archive.extract(name, tmp_path)


@pytest.fixture(scope="module")
def agent_with_threads() -> Iterator[str]:
    """The address of an agent whose sessions have threads by default that none would have otherwise."""
    with served(f"--threads={MORE}") as (address, _):
        yield address


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet", "ONNXRuntime"])
def test_each_framework_says_shows_and_reports_the_same_threads(agent: Agent, framework: str) -> None:
    done = agent(*DATASET, f"--framework_name={framework}")
    assert done.code == 0, done.stderr
    assert f"(cpu, threads: {default_threads()}, local)" in done.stderr + done.stdout

    shown = agent("info", "evaluation", "show", done.figure("evaluation"))
    assert f"\ndevice        cpu, {default_threads()} threads; local\n" in shown.stdout
    assert "\nlibraries     " in shown.stdout
    assert "inter-op threads" in shown.stdout
    (row,) = agent("info", "evaluation", "latency", "-f", "csv").rows
    assert row["threads"] == str(default_threads())


@pytest.mark.parametrize(("given", "used"), [((), MORE), (("--threads=1",), 1)])
@pytest.mark.parametrize("framework", ["PyTorch", "ONNXRuntime"])
def test_sessions_at_an_agent_have_its_threads_unless_the_client_names_a_number(
    agent: Agent, agent_with_threads: str, framework: str, given: tuple[str, ...], used: int
) -> None:
    done = agent(*DATASET, f"--agent={agent_with_threads}", f"--framework_name={framework}", *given)
    assert done.code == 0, done.stderr
    assert f"threads: {used}, " in done.stderr + done.stdout


def test_urls_are_predicted_with_the_threads_of_the_agent_too(
    agent: Agent, agent_with_threads: str, image: str, tmp_path: Path
) -> None:
    (tmp_path / "urls.txt").write_text(f"{image}\n", encoding="utf-8")
    where = (f"--agent={agent_with_threads}", "--framework_name=PyTorch")
    done = agent("predict", "urls", f"--urls_file_path={tmp_path / 'urls.txt'}", *where)
    assert done.code == 0, done.stderr
    assert f"threads: {MORE}, " in done.stderr + done.stdout
