"""The secret in a file, as containers and services provide it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Agent, served

FEW = ("predict", "dataset", "--framework_name=ONNXRuntime", "--num_file_parts=1", "--publish=false")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agent_secret"
    path.write_text("open sesame\n", encoding="ascii")
    return path


def test_both_sides_take_the_secret_from_a_file_by_flag_or_environment(
    agent: Agent, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(f"--secret_file={file}") as (address, _):
        assert agent(*FEW, f"--agent={address}").code == 6
        assert agent(*FEW, f"--agent={address}", f"--secret_file={file}").code == 0
        assert agent(*FEW, f"--agent={address}", "--secret=open sesame").code == 0
        monkeypatch.setenv("AGENT_SECRET_FILE", str(file))
        assert agent(*FEW, f"--agent={address}").code == 0
        # a secret that is given goes before the file
        assert agent(*FEW, f"--agent={address}", "--secret=wrong").code == 6


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "No such file"),
        (b"", "is not a single line"),
        (b"\n", "is not a single line"),
        (b"one\ntwo\n", "is not a single line"),
        ("schlüssel\n".encode(), "is not a single line"),
        (b"x" * 5000, "is not a single line"),
    ],
)
def test_a_file_without_a_secret_is_an_error_that_names_the_file_and_not_what_is_in_it(
    agent: Agent, tmp_path: Path, content: bytes | None, part: str
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)

    answer = agent("serve", "--port=0", f"--secret_file={file}")

    assert answer.code == 2
    assert str(file) in answer.error
    assert part in answer.error
    assert "two" not in answer.error
