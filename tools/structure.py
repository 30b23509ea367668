"""Measures the structure of the source: lines, folders, imports, and the files on the way of a run.

    python -m tools.structure            the checkout that this file is in
    python -m tools.structure ROOT       another checkout, with the packages of its own environment

Source is every hand-written ``.py`` file of the program's folders; generated stubs are not counted. An import
edge is a pair of a module and a project module that it imports, anywhere in its file, each pair once.

The *way* of ``agent predict dataset``, from the command line to the framework and back, is taken from a run
of DigitsCNN in ONNX Runtime. It is the project's files in which a function runs between the reading of the
first input and the comparing of the last prediction with its label, in any thread, and those on the call
stack when the evaluation is stored and when its summary is printed. Files that only accompany the run
are not counted: tracing, progress, the check for a stop, and the fields of the manifest.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("agent", "client", "evaluators", "manifests", "protos", "inferometer")
LISTS = ("agent/architectures", "agent/operators/table", "evaluators/reports")
"""Folders, not counted as rooms, with a file for each of many models, groups of operators or reports."""

_WITH_ROOMS = ("agent", "client", "evaluators")
WINGS = re.compile(r"/operators/|/plans?/|/(?:op|plan|plans)\.py$")
"""The parts that build on the rest: the benchmarks of operators, and plans."""
_WATCHING = ("conditions", "condition_sampler", "gpu_conditions")
ONLOOKERS = ("tracing", "run_tracing", "progress", "running_now", "stopping", "manifests", *_WATCHING)
"""Folders and files that a run calls on its way, but that its data do not pass through."""

# Runs `agent predict dataset` under a profile hook and prints the files on its way.
_TRACED = """
import importlib, io, json, sys, threading
sys.argv[1:], program = [], sys.argv[1]
sys.argv += ["predict", "dataset", "--model_name=DigitsCNN", "--num_file_parts=-1"]
sys.argv += ["--framework_name=ONNXRuntime"]
found, since_reading, reads = set(), set(), 0

def note_stack(frame):
    while frame is not None:
        found.add(frame.f_code.co_filename)
        frame = frame.f_back

def hook(frame, event, argument):
    global reads
    code = frame.f_code
    if event != "call" or code.co_name == "<module>":
        return
    if code.co_name == "read" and "/zipfile" in code.co_filename:
        reads += 1
    if reads:
        since_reading.add(code.co_filename)
    if code.co_name == "add_batch" and "/evaluators/tasks/classification.py" in code.co_filename:
        found.update(since_reading)
        note_stack(frame)
    elif code.co_name.startswith("insert") and "/neosqlite/" in code.co_filename:
        note_stack(frame)

class Screen(io.StringIO):
    def write(self, text):
        if "top-1" in text:
            note_stack(sys._getframe(1))
        return len(text)

module, _, function = program.partition(":")
screen, sys.stdout = sys.stdout, Screen()
threading.setprofile(hook)
sys.setprofile(hook)
try:
    getattr(importlib.import_module(module), function)()
except SystemExit as end:
    assert not end.code, end.code
finally:
    sys.setprofile(None)
    threading.setprofile(None)
    sys.stdout = screen
assert reads, found
print(json.dumps(sorted(found)))
"""


@dataclass(frozen=True)
class Source:
    """The modules of a checkout and what they import of each other.

    Attributes:
        root: The checkout.
        files: The files by the name of their module, such as ``inferometer.agent.inference.session``.
        edges: Pairs of an importing and an imported module.
    """

    root: Path
    files: Mapping[str, Path]
    edges: frozenset[tuple[str, str]]

    @property
    def lines(self) -> Mapping[str, int]:
        """The number of lines in each top-level folder, without generated stubs."""
        count: Counter[str] = Counter()
        for path in self.files.values():
            if "_pb2" not in path.name:
                folder = path.relative_to(self.root).parts[0]
                count[folder] += len(path.read_text(encoding="utf-8").splitlines())
        return count

    @property
    def folder_sizes(self) -> Mapping[str, int]:
        """The number of modules in each folder that is a room, without its ``__init__``."""
        folders = Counter(
            path.relative_to(self.root).parent.as_posix()
            for path in self.files.values()
            if path.name != "__init__.py" and "_pb2" not in path.name
        )
        return {name: count for name, count in folders.items() if not name.startswith(LISTS)}

    @property
    def cycles(self) -> list[list[str]]:
        """The groups of modules that import each other, directly or through others."""
        return [sorted(group) for group in _components(self.edges) if len(group) > 1]

    @property
    def sizes(self) -> Mapping[str, int]:
        """The number of lines by path in the checkout, without generated stubs and ``__init__``."""
        return {
            path.relative_to(self.root).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
            for path in self.files.values()
            if "_pb2" not in path.name and path.name != "__init__.py"
        }

    @property
    def docstring_lines(self) -> int:
        """The number of lines of docstrings, including those of attributes."""
        return sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for path in self.files.values()
            if "_pb2" not in path.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )

    @property
    def fan_out(self) -> Mapping[str, int]:
        """How many modules each module imports, except for the module of the public names."""
        return Counter(one for one, _ in self.edges if one != "inferometer")

    @property
    def mutual_rooms(self) -> list[tuple[str, str]]:
        """The pairs of rooms of a folder that import each other."""
        pairs = {(_room(one), _room(other)) for one, other in self.edges}
        rooms = sorted({room for pair in pairs for room in pair if room})
        return [(a, b) for a, b in combinations(rooms, 2) if {(a, b), (b, a)} <= pairs]


def read_source(root: Path) -> Source:
    """Reads the modules of a checkout."""
    files: dict[str, Path] = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            files[name if folder == "inferometer" else f"inferometer.{name}"] = path
    edges = {
        (name, imported)
        for name, path in files.items()
        for imported in _imports(path, files)
        if imported != name
    }
    return Source(root, files, frozenset(edges))


def _imports(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Yields the project's modules that a file imports; the package for names of its ``__init__``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            full = {f"{module}.{alias.name}" for alias in node.names}
            yield from full & known.keys()
            if module in known and full - known.keys():
                yield module


def _room(module: str) -> str | None:
    """Returns the room of a module, preceded by its folder unless that is the agent's; None for no room."""
    folder, *parts = module.removeprefix("inferometer.").split(".")
    if len(parts) < 2 or folder not in _WITH_ROOMS:
        return None
    return parts[0] if folder == "agent" else f"{folder}/{parts[0]}"


def _components(edges: Iterable[tuple[str, str]]) -> Iterator[set[str]]:
    """Yields the strongly connected components of a graph: groups of modules that reach each other."""
    onward: dict[str, set[str]] = {}
    for one, other in edges:
        onward.setdefault(one, set()).add(other)
    left = set(onward)
    reached = {module: _reached(module, onward) for module in onward}
    while left:
        module = left.pop()
        group = {other for other in reached[module] if module in reached.get(other, ())} | {module}
        left -= group
        yield group


def _reached(start: str, onward: Mapping[str, set[str]]) -> set[str]:
    """Returns the modules that ``start`` imports, directly or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        fresh = onward.get(waiting.pop(), set()) - found
        found |= fresh
        waiting += fresh
    return found


def files_on_the_way(root: Path, python: str = sys.executable) -> list[str]:
    """Runs ``agent predict dataset`` and returns the project's files on its way.

    Args:
        root: The checkout.
        python: The interpreter, with the packages that the checkout needs.
    """
    with tempfile.TemporaryDirectory() as folder:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_")}
        own = {"PYTHONPATH": str(root), "AGENT_DATA_DIR": folder, "XDG_CONFIG_HOME": folder}
        done = subprocess.run(
            [python, "-c", _TRACED, "inferometer.client.cli.main:main"],
            cwd=folder,
            env=kept | own,
            capture_output=True,
            text=True,
            timeout=300,
        )
    if done.returncode:
        raise SystemExit(f"agent predict dataset failed: {done.stderr}")
    paths = [Path(file).resolve() for file in json.loads(done.stdout.splitlines()[-1])]
    own_files = {path.relative_to(root) for path in paths if path.is_relative_to(root)}
    return sorted(
        path.as_posix()
        for path in own_files
        if path.parts[0] in FOLDERS and not {*path.parts[:-1], path.stem} & set(ONLOOKERS)
    )


def main() -> None:
    """Prints the figures of a checkout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--no_run", action="store_true", help="leave out the files on the way of a run")
    chosen = parser.parse_args()
    root = chosen.root.resolve()
    source = read_source(root)
    lines, sizes, files = source.lines, source.folder_sizes, source.sizes
    total, wings = sum(lines.values()), sum(n for name, n in files.items() if WINGS.search(name))
    own = ", ".join(f"{name} {count:,}" for name, count in lines.items())
    print(f"source lines             {total:,} ({own})")
    print(f"  docstrings             {source.docstring_lines / total:.1%}")
    print(f"  without the wings      {total - wings:,}")
    tests = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (root / "tests").rglob("*.py"))
    print(f"lines of tests           {tests:,}")
    print(f"files                    {len(files)}, median {statistics.median(files.values()):.0f} lines")
    largest = max(sizes, key=lambda name: sizes[name])
    print(f"modules in the largest   {sizes[largest]} ({largest})")
    print(f"internal import edges    {len(source.edges):,}")
    widest = max(source.fan_out, key=lambda name: source.fan_out[name])
    print(f"largest fan-out          {source.fan_out[widest]} ({widest})")
    print(f"import cycles            {len(source.cycles)}", *map(" ".join, source.cycles), sep="\n  ")
    print(f"rooms in both directions {len(source.mutual_rooms)}", *map(" ↔ ".join, source.mutual_rooms))
    if not chosen.no_run:
        python = root / ".venv" / "bin" / "python"
        way = files_on_the_way(root, str(python) if python.exists() else sys.executable)
        print(f"files on the way         {len(way)}", *way, sep="\n  ")


if __name__ == "__main__":
    main()
