"""A fast list of all models, with an index of manifests that were read earlier.

A list made from the index needs neither YAML nor the schema, which take longer to load than all else. The
index is used for lists only: opening a model reads its manifest.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_version
from packaging.version import Version

from inferometer.agent import __version__
from inferometer.agent.artifacts.locations import Availability, availability_of, model_files
from inferometer.agent.files import replacing
from inferometer.manifests.errors import ManifestError
from inferometer.manifests.files import check_directories, manifest_files
from inferometer.manifests.versions import Constraint

_INDEX = "models.json"
_AGENT = Path(__file__).parents[1]
_READERS = (
    Path(__file__),
    Path(__file__).with_name("requirements.py"),
    _AGENT / "artifacts" / "locations.py",
    _AGENT.parent / "manifests",
)
_LIBRARIES = ("packaging", "pydantic", "pydantic_core", "yaml")
_SETTLED_NS = 2_000_000_000
"""The minimum age of a recorded change: with a file system's coarse clock, two changes can look like one."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """The entry of a model in a list; ``constraint`` applies to the framework's version.

    ``dataset`` is the default dataset for evaluations. ``architecture`` is None for a model that is not built
    in code. ``problem`` describes the first field that this program or this machine does not support; it is
    empty if there is none. ``files`` contains the possible paths of each file, and its URL or None.
    """

    name: str
    version: str
    framework: str
    constraint: str
    dataset: str | None
    description: str
    hidden: bool
    architecture: str | None
    problem: str
    files: tuple[tuple[tuple[str, ...], str | None], ...]

    def runs_in(self, version: str | None) -> bool:
        """Returns whether the model runs in this version of its framework; None means not installed."""
        return version is not None and Constraint(self.constraint).allows(version)

    def is_missing(self, cache_directory: Path) -> bool:
        """Returns whether any of the model's files is neither on this machine nor at a URL."""
        return self.availability(cache_directory) is Availability.MISSING

    def availability(self, cache_directory: Path) -> Availability:
        """Returns where the model's files are; see ``agent.artifacts.locations.availability_of``."""
        return availability_of(
            ((tuple(map(Path, candidates)), url) for candidates, url in self.files), cache_directory
        )


@dataclass(frozen=True, slots=True)
class ModelListing:
    """The models in the order of ``Catalog.models``, the problems of invalid manifests, and dataset names."""

    models: tuple[ListedModel, ...]
    problems: tuple[str, ...]
    datasets: tuple[str, ...] = ()


def list_models(
    directories: Sequence[Path], cache_directory: Path, clock_ns: Callable[[], int] = time.time_ns
) -> ModelListing:
    """Lists every model of the program and of the user's ``directories``, including hidden ones.

    A file is considered unchanged if its size, its modification and change times, its device and its inode
    are. A file that changed in the last two seconds or cannot be read is not added to the index. If
    ``cache_directory``, which holds the index, cannot be used, every file is read each time.

    Raises:
        ConfigurationError: A directory does not exist, or is not a directory.
    """
    check_directories(directories)
    index = cache_directory / _INDEX
    program = _program()
    known = _read(index, program)
    entries: list[dict[str, Any]] = []
    learned: dict[str, Any] = {}
    for path in manifest_files(directories):
        path = path.absolute()  # the index is valid in every working directory
        state = _state(path)
        entry = known.get(str(path))
        if entry is None or entry.get("state") != state:
            latest_ns = clock_ns() - _SETTLED_NS
            entry, was_read = _entry(path, state)
            if was_read and state and state[2] <= latest_ns:
                learned[str(path)] = entry
        entries.append(entry)
    if learned:
        _write(index, program, known | learned)
    return _listing(entries)


def _listing(entries: Iterable[Mapping[str, Any]]) -> ModelListing:
    found: dict[tuple[str, ...], ListedModel] = {}
    problems, datasets = [], []
    for entry in entries:
        if entry["dataset"] is not None:
            datasets.append(entry["dataset"])
        if entry["problem"] is not None:
            problems.append(entry["problem"])
        if entry["model"] is not None:
            files = tuple((tuple(candidates), url) for candidates, url in entry["model"]["files"])
            model = ListedModel(**entry["model"] | {"files": files})
            name, framework = model.name.casefold(), model.framework.casefold()
            found.setdefault((name, canonicalize_version(model.version), framework, model.constraint), model)
    ordered = sorted(found.values(), key=lambda model: model.framework.casefold())
    ordered.sort(key=lambda model: Version(model.version), reverse=True)
    ordered.sort(key=lambda model: model.name.casefold())
    return ModelListing(tuple(ordered), tuple(problems), tuple(sorted(set(datasets))))


def _entry(path: Path, state: list[int]) -> tuple[dict[str, Any], bool]:
    """Returns a file's entry for the index, and whether the file could be read."""
    from inferometer.agent.inference.requirements import unsupported_here
    from inferometer.manifests.loader import load_manifest
    from inferometer.manifests.schema import DatasetManifest, ModelManifest

    entry: dict[str, Any] = {"state": state, "problem": None, "model": None, "dataset": None}
    try:
        manifest = load_manifest(path)
    except ManifestError as error:
        return entry | {"problem": str(error)}, not isinstance(error.__cause__, OSError)
    if not isinstance(manifest, ModelManifest):
        return entry | {"dataset": manifest.name if isinstance(manifest, DatasetManifest) else None}, True
    files = manifest.model
    problems = unsupported_here(manifest)
    model = ListedModel(
        name=manifest.name,
        version=manifest.version,
        framework=manifest.framework.name,
        constraint=manifest.framework.version,
        dataset=manifest.dataset,
        description=manifest.description,
        hidden=manifest.hidden,
        architecture=files.architecture,
        problem=problems[0] if problems else "",
        files=tuple((tuple(map(str, file.candidates)), file.url) for file in model_files(manifest).values()),
    )
    return entry | {"model": asdict(model)}, True


def _state(path: Path) -> list[int]:
    """Returns a file's state, whose third item is the change time; empty if the file is not accessible."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def _program() -> list[Any]:
    """Returns the state of the code that reads manifests."""
    sources = [source for place in _READERS for source in (sorted(place.glob("*.py")) or [place])]
    for library in _LIBRARIES:
        spec = find_spec(library)
        sources.append(Path(spec.origin if spec and spec.origin else library))
    return [__version__, platform.machine(), *([str(source), *_state(source)] for source in sources)]


def _read(index: Path, program: list[Any]) -> dict[str, Any]:
    """Returns the index; empty if it is missing, damaged or written by another version of the program."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
        if content["program"] != program:
            return {}
        entries: dict[str, Any] = content["files"]
        _listing(entries.values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    return entries


def _write(index: Path, program: list[Any], entries: Mapping[str, Any]) -> None:
    """Replaces the index atomically, dropping files that no longer exist."""
    kept = {name: entry for name, entry in entries.items() if Path(name).exists()}
    content = json.dumps({"program": program, "files": kept})
    with suppress(OSError):
        index.parent.mkdir(parents=True, exist_ok=True)
        with replacing(index, mode=0o600) as file:
            file.write(content.encode())
