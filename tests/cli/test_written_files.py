"""The program writes only into its own folders, whatever the frameworks would do."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HOOK = """
import os, sys

_log = os.open(os.environ["TEST_WRITES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
_writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_changes = {
    "os.chmod": 1, "os.chown": 1, "os.link": 2, "os.mkdir": 1, "os.mkfifo": 1, "os.mknod": 1, "os.remove": 1,
    "os.rename": 2, "os.rmdir": 1, "os.symlink": 2, "os.truncate": 1, "os.utime": 1, "sqlite3.connect": 1,
}

def _seen(event, arguments):
    paths = arguments[: _changes.get(event, 0)]
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & _writes:
        paths = arguments[:1]
    for path in paths:
        if isinstance(path, (str, bytes, os.PathLike)):
            whole = os.path.join(os.getcwd(), os.fsdecode(path))
            if event == "os.mkdir" and os.path.isdir(whole):
                continue
            os.write(_log, f"{(event, whole)!r}\\n".encode())

sys.addaudithook(_seen)
from inferometer.client.cli.main import main, run
arguments = sys.argv[1:]
while "then" in arguments:
    end = arguments.index("then")
    assert run(arguments[:end]) == 0
    arguments = arguments[end + 1 :]
main(arguments)
"""
ROOT = Path(__file__).parents[2]
TRACED = "--trace_level=FRAMEWORK_TRACE"


@dataclass(frozen=True)
class Place:
    """A home and a working folder that hold nothing, and what the program does there."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        names = ("PATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        return {
            **kept,
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TEST_WRITES": str(self.folder / "writes"),
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", HOOK, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder / "work",
            env=self.environment,
        )

    def run(self, *arguments: str) -> None:
        process = self.start(*arguments)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors

    @property
    def own(self) -> tuple[Path, Path]:
        home = self.folder / "home"
        return home / ".local" / "share" / "inferometer", home / ".cache" / "inferometer"

    def written_elsewhere(self) -> set[tuple[str, str]]:
        """What Python was asked to change outside of the program's folders and that of temporary files."""
        own = [str(path) for path in self.own]
        lines = (self.folder / "writes").read_text(encoding="utf-8").splitlines()
        assert any("inferometer.db" in line for line in lines), "what the hook writes is not what is read"
        return {
            (event, path)
            for event, path in map(ast.literal_eval, lines)
            if not any(path == folder or path.startswith((f"{folder}/", f"{folder}.")) for folder in own)
            and not any(folder.startswith(f"{path}/") for folder in own)
            and not path.startswith((str(self.folder / "tmp"), "/dev/"))
        }

    def left(self) -> Iterator[Path]:
        """What lies outside of the program's folders at the end, whoever wrote it."""
        for folder in ("home", "tmp", "work"):
            for path in (self.folder / folder).rglob("*"):
                if not any(path in (own, *own.parents) or own in path.parents for own in self.own):
                    yield path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("home", "tmp", "work"):
        (tmp_path / name).mkdir()
    return Place(tmp_path)


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet", "ONNXRuntime"])
def test_traced_and_profiled_evaluation_writes_into_its_own_folders_only(
    place: Place, framework: str
) -> None:
    place.run(
        "predict", "dataset", "--num_file_parts=1", f"--framework_name={framework}", TRACED, "--profile"
    )
    assert place.written_elsewhere() == set()
    assert list(place.left()) == []
    assert {path.name for path in place.own[0].iterdir()} == {"inferometer.db", "profiles"}


def test_served_agent_and_its_client_write_into_their_own_folders_only(place: Place) -> None:
    agent = place.start("serve", "--port=0", "--max_batch_size=4")
    assert agent.stdout is not None
    try:
        line = agent.stdout.readline()
        address = line.removeprefix("serving on ").strip()
        assert address != line.strip(), agent.communicate(timeout=10)
        evaluate = ("predict", "dataset", "--num_file_parts=1", f"--agent={address}", TRACED)
        pytorch, mxnet, onnx = (f"--framework_name={name}" for name in ("PyTorch", "MXNet", "ONNXRuntime"))
        place.run(*evaluate, pytorch, "then", *evaluate, mxnet, "then", *evaluate, onnx)
        agent.send_signal(signal.SIGTERM)
        _, errors = agent.communicate(timeout=60)
        assert agent.returncode == 0, errors
    finally:
        agent.kill()
        agent.communicate()
    assert place.written_elsewhere() == set()
    assert list(place.left()) == []
