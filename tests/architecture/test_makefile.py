"""The Makefile: its help is correct, and the set-up runs when it is needed."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ISSUED = {"demo", "test", "check", "proto", "bench"}
DOCUMENTS = ("*.md", "docker/*.md", "docs/*.md")

# Stands in for Python: it notes what it is called with, makes virtual environments of itself, and fails to
# install while a file named "fail" is there.
_FAKE_PYTHON = """#!/bin/sh
echo "$@" >> calls
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  *"pip install"*) test ! -e fail ;;
esac
"""


def _make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment.pop("MFLAGS", None)
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.fixture(scope="module")
def targets(root: Path) -> set[str]:
    """The targets that `make help` shows."""
    done = _make(root, "help")
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^  make (\S+) +\S", done.stdout, re.MULTILINE))


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    """A checkout with nothing but what the set-up reads, and with a Python that notes its calls."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(root / name, tmp_path)
    (tmp_path / "fake_python").write_text(_FAKE_PYTHON, encoding="utf-8")
    (tmp_path / "fake_python").chmod(0o755)
    return tmp_path


def _installs(checkout: Path) -> int:
    """How often packages were installed."""
    return (checkout / "calls").read_text(encoding="utf-8").count("pip install")


def test_help_shows_the_commands_of_the_project(targets: set[str]) -> None:
    assert targets >= ISSUED


def test_every_target_that_help_shows_can_be_made(root: Path, targets: set[str]) -> None:
    for target in targets:
        done = _make(root, "--dry-run", target)
        assert done.returncode == 0, f"make {target}: {done.stderr}"


def test_every_make_command_in_the_documents_exists(root: Path, targets: set[str]) -> None:
    for path in (path for pattern in DOCUMENTS for path in root.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        named = set(re.findall(r"(?:^|`)\$? ?make ([a-z-]+)", text, re.MULTILINE))
        assert named <= targets, path


def test_test_checks_installs_lint_types_imports_and_stubs_before_the_tests(root: Path) -> None:
    done = _make(root, "--dry-run", "test")
    order = [
        "check_protos",
        "pip check",
        "ruff check",
        "ruff format --check",
        "mypy",
        "lint-imports",
        "-m pytest",
    ]

    places = [done.stdout.find(step) for step in order]
    assert -1 not in places
    assert places == sorted(places)


def test_the_set_up_is_done_once(checkout: Path) -> None:
    for _ in range(2):
        assert _make(checkout, "install", "PYTHON=./fake_python").returncode == 0

    assert _installs(checkout) == 1
    assert "-c constraints.txt -e .[all,dev]" in (checkout / "calls").read_text(encoding="utf-8")


def test_the_set_up_says_that_pip_runs_and_shows_its_progress_on_a_terminal(checkout: Path) -> None:
    done = _make(checkout, "install", "PYTHON=./fake_python")
    assert "setting up .venv: pip installs" in done.stderr
    assert "pip install --quiet" in (checkout / "calls").read_text(encoding="utf-8")

    (checkout / ".venv" / ".installed").unlink()
    (checkout / "calls").unlink()
    ours, terminal = pty.openpty()
    try:
        command = ["make", "install", "PYTHON=./fake_python"]
        subprocess.run(command, cwd=checkout, stdout=terminal, stderr=terminal, check=True, timeout=60)
    finally:
        os.close(terminal)
        os.close(ours)
    calls = (checkout / "calls").read_text(encoding="utf-8")
    assert "pip install" in calls
    assert "--quiet" not in calls


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_the_set_up_is_done_again_when_what_it_reads_has_changed(checkout: Path, changed: str) -> None:
    assert _make(checkout, "install", "PYTHON=./fake_python").returncode == 0
    stamp = checkout / ".venv" / ".installed"
    later = stamp.stat().st_mtime + 10
    os.utime(checkout / changed, (later, later))

    assert _make(checkout, "install", "PYTHON=./fake_python").returncode == 0
    assert _installs(checkout) == 2


def test_a_set_up_that_failed_is_done_again(checkout: Path) -> None:
    (checkout / "fail").touch()
    assert _make(checkout, "install", "PYTHON=./fake_python").returncode != 0
    assert not (checkout / ".venv" / ".installed").exists()
    (checkout / "fail").unlink()

    assert _make(checkout, "install", "PYTHON=./fake_python").returncode == 0
    assert _installs(checkout) == 2


def test_a_python_that_is_too_old_or_too_new_is_named(checkout: Path) -> None:
    other = checkout / "other_python"
    other.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = (3, 9, 1); $2"\n',
        encoding="utf-8",
    )
    other.chmod(0o755)

    done = _make(checkout, "install", "PYTHON=./other_python")

    assert done.returncode != 0
    assert "Python 3.10 to 3.13 is needed, this is 3.9" in done.stderr
    assert not (checkout / ".venv").exists()


def test_ci_runs_the_command_of_the_readme(root: Path) -> None:
    script = (root / ".ci" / "run").read_text(encoding="utf-8").splitlines()

    assert "make test" in script
    assert os.access(root / ".ci" / "run", os.X_OK)
    assert os.access(root / "tools" / "demo.sh", os.X_OK)
