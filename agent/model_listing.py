"""The models that there are, listed quickly: what was read is remembered as long as its file is the same.

To list what is remembered takes neither YAML nor the schema, which take longer to load than all the rest. It
is only shown: a model that is opened is read from its manifest.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_version
from packaging.version import Version

from agent import __version__
from agent.file_locations import Availability, availability_of, model_files
from manifests.errors import ManifestError
from manifests.files import check_directories, manifest_files
from manifests.versions import Constraint

_INDEX = "models.json"
_HERE = Path(__file__).parent
_READERS = (_HERE / "model_listing.py", _HERE / "file_locations.py", _HERE.parent / "manifests")
_LIBRARIES = ("packaging", "pydantic", "pydantic_core", "yaml")
_SETTLED_NS = 2_000_000_000
"""How old a change must be: file systems tell times in steps, and two changes may fall into one of them."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """What a list says of a model.

    Attributes:
        name: The model.
        version: Its version.
        framework: The framework that it needs.
        constraint: The versions of it that will do.
        dataset: The dataset that it is evaluated over by default.
        description: What its manifest says.
        hidden: Whether it is listed only on request.
        in_code: Whether its architecture is built in code, so that it can have random weights.
        files: Where each of its files may be: paths, and a URL or None.
    """

    name: str
    version: str
    framework: str
    constraint: str
    dataset: str | None
    description: str
    hidden: bool
    in_code: bool
    files: tuple[tuple[tuple[str, ...], str | None], ...]

    def runs_in(self, version: str | None) -> bool:
        """Whether it runs in this version of its framework; None, not installed, runs nothing."""
        return version is not None and Constraint(self.constraint).allows(version)

    def availability(self, cache_directory: Path) -> Availability:
        """Where its files are; see ``agent.file_locations.availability``."""
        return availability_of(
            ((tuple(map(Path, candidates)), url) for candidates, url in self.files), cache_directory
        )


@dataclass(frozen=True, slots=True)
class ModelListing:
    """The models, in the order of ``Catalog.models``, and what is wrong with files that are no manifests."""

    models: tuple[ListedModel, ...]
    problems: tuple[str, ...]


def list_models(
    directories: Sequence[Path], cache_directory: Path, clock_ns: Callable[[], int] = time.time_ns
) -> ModelListing:
    """Lists every model of the program and of the user's ``directories``, hidden ones too.

    A file counts as unchanged when its size, its times of modification and change, its device and its inode
    are. One that changed in the last two seconds, or could not be read, is not remembered.

    Args:
        directories: The user's directories.
        cache_directory: Where what is remembered lies; without it every file is read each time.
        clock_ns: The time since 1970 in nanoseconds.

    Raises:
        ConfigurationError: A directory does not exist, or is none.
    """
    check_directories(directories)
    index = cache_directory / _INDEX
    program = _program()
    known = _read(index, program)
    entries: list[dict[str, Any]] = []
    learned: dict[str, Any] = {}
    for path in manifest_files(directories):
        path = path.absolute()  # what is remembered holds wherever the program is run
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
    problems = []
    for entry in entries:
        if entry["problem"] is not None:
            problems.append(entry["problem"])
        if entry["model"] is not None:
            files = tuple((tuple(candidates), url) for candidates, url in entry["model"]["files"])
            model = ListedModel(**entry["model"] | {"files": files})
            found.setdefault(
                (
                    model.name.casefold(),
                    canonicalize_version(model.version),
                    model.framework.casefold(),
                    model.constraint,
                ),
                model,
            )
    ordered = sorted(found.values(), key=lambda model: model.framework.casefold())
    ordered.sort(key=lambda model: Version(model.version), reverse=True)
    ordered.sort(key=lambda model: model.name.casefold())
    return ModelListing(tuple(ordered), tuple(problems))


def _entry(path: Path, state: list[int]) -> tuple[dict[str, Any], bool]:
    """What is remembered of a file, read from the file, and whether that could be read."""
    from manifests.loader import load_manifest
    from manifests.schema import ModelManifest

    try:
        manifest = load_manifest(path)
    except ManifestError as error:
        was_read = not isinstance(error.__cause__, OSError)
        return {"state": state, "problem": str(error), "model": None}, was_read
    if not isinstance(manifest, ModelManifest):
        return {"state": state, "problem": None, "model": None}, True
    files = manifest.model
    model = ListedModel(
        name=manifest.name,
        version=manifest.version,
        framework=manifest.framework.name,
        constraint=manifest.framework.version,
        dataset=manifest.dataset,
        description=manifest.description,
        hidden=manifest.hidden,
        in_code=files.architecture is not None,
        files=tuple((tuple(map(str, file.candidates)), file.url) for file in model_files(manifest).values()),
    )
    return {"state": state, "problem": None, "model": asdict(model)}, True


def _state(path: Path) -> list[int]:
    """What changes when a file does, its time of change third; empty where that cannot be told."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def _program() -> list[Any]:
    """What changes when the program reads manifests in another way."""
    sources = [source for place in _READERS for source in (sorted(place.glob("*.py")) or [place])]
    for library in _LIBRARIES:
        spec = find_spec(library)
        sources.append(Path(spec.origin if spec and spec.origin else library))
    return [__version__, *([str(source), *_state(source)] for source in sources)]


def _read(index: Path, program: list[Any]) -> dict[str, Any]:
    """What is remembered; nothing where there is none, or what another version of the program wrote."""
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
    """Remembers what was read, in one step, and only of files that are still there."""
    kept = {name: entry for name, entry in entries.items() if Path(name).exists()}
    content = json.dumps({"program": program, "files": kept})
    import tempfile  # most listings learn nothing

    with suppress(OSError):
        index.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=index.parent, prefix=".models-")
        partial = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(content)
            partial.replace(index)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
