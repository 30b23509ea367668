"""The pre-commit hooks are the tools of `make check`, from the project's own environment."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture(scope="module")
def hooks(root: Path) -> list[dict[str, Any]]:
    content = yaml.safe_load((root / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repository["repo"] for repository in content["repos"]] == ["local"]
    found: list[dict[str, Any]] = content["repos"][0]["hooks"]
    return found


def test_the_configuration_is_valid(root: Path, bin_directory: Path) -> None:
    command = [str(bin_directory / "pre-commit"), "validate-config", str(root / ".pre-commit-config.yaml")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_hooks_are_the_checks_of_the_makefile(root: Path, hooks: list[dict[str, Any]]) -> None:
    makefile = (root / "Makefile").read_text(encoding="utf-8")

    for hook in hooks:
        command = hook["entry"].replace(".venv/bin/", "$(BIN)/").replace(" --force-exclude", "")
        assert command.removeprefix("env ") in makefile


def test_the_hooks_need_no_network(hooks: list[dict[str, Any]]) -> None:
    assert {hook["language"] for hook in hooks} == {"unsupported"}
    assert all(".venv/bin/" in hook["entry"] for hook in hooks)
