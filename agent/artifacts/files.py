"""The files of models and datasets: the download cache, and a model's files with their declared inputs.

A file is fetched once and verified whenever it is used. A model's files are located or downloaded, and
verified against the manifest; the signature of a model without a manifest consists of the inputs that its
file or object declares.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from inferometer.agent.architectures.sources import Architecture, Architectures
from inferometer.agent.artifacts.downloads import (
    SHA256,
    CheckedFile,
    Downloader,
    PartialFile,
    UnpackedArchive,
    UnpackLimits,
    check_file,
    digests,
    mismatch,
    unpack,
    write_record,
)
from inferometer.agent.artifacts.locations import (
    DOWNLOADED,
    FileReference,
    cached_path,
    file_name,
    is_file,
    labels_file,
    model_files,
    plain_name,
    shown,
)
from inferometer.agent.files import lock
from inferometer.manifests.errors import ArtifactError, ArtifactUnavailableError
from inferometer.manifests.schema import ModelManifest

_KEY_DIGITS = 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class ArtifactCache:
    """A directory of downloaded files. Safe to use from any number of processes and threads.

    A file is stored at ``downloads/<host>/<hash of the URL>/<file name>``, with the SHA-256 of a download in
    ``<file name>.json`` beside it. A file that a user puts there is used as well. Archives are unpacked into
    ``unpacked/<file name>-<hash of the content>/``. The directory is created with the first file.
    """

    directory: Path
    downloader: Downloader
    unpack_limits: UnpackLimits = UnpackLimits()  # noqa: RUF009 - frozen

    def fetch(self, url: str, checksum: str, source: object) -> CheckedFile:
        """Returns the file at an http or https URL that ends with a file name; downloads it if it is missing.

        If no checksum is given, the file must still be as it was downloaded. The error names ``source``, the
        manifest.

        Raises:
            ArtifactUnavailableError: The download fails. The message names the path for a manual copy.
            ArtifactError: The file has another checksum, or the cache cannot be written.
        """
        place = cached_path(self.directory, url)
        if not is_file(place):
            with self._locked(place):
                if not is_file(place):  # otherwise another process was faster
                    return self._download(url, place, checksum, source)
        return _checked(place, checksum, source)

    def unpack(self, archive: CheckedFile) -> UnpackedArchive:
        """Returns the unpacked content of an archive.

        Raises:
            ArtifactError: The file is not an archive, is damaged or is rejected, or the cache cannot be
                written.
        """
        name = f"{plain_name(archive.path.name)}-{archive.sha256[:_KEY_DIGITS]}"
        folder = self.directory / "unpacked" / name
        record = folder.with_name(f"{name}.json")
        if not folder.is_dir():
            with self._locked(folder):
                if not folder.is_dir():
                    self._unpack(archive.path, folder, record)
        return UnpackedArchive.read(archive.path, folder, record)

    def _unpack(self, archive: Path, folder: Path, record: Path) -> None:
        with (
            _writing(folder.parent),
            tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking-") as temporary,
        ):
            content = Path(temporary) / "content"
            content.mkdir()
            write_record(record, archive, unpack(archive, content, self.unpack_limits))
            content.rename(folder)

    def _download(self, url: str, place: Path, checksum: str, source: object) -> CheckedFile:
        partial = PartialFile(place)
        with _writing(place.parent):
            try:
                while True:
                    resumed = self.downloader.download(url, partial)
                    found = digests(partial.path, checksum)
                    difference = mismatch(found, checksum, source)
                    if difference is None:
                        break
                    partial.discard()
                    if not resumed:  # otherwise the part from before may be the wrong one
                        raise ArtifactError(f"{shown(url)}: is not the file that is meant: {difference}")
            except ArtifactUnavailableError as error:
                raise ArtifactUnavailableError(
                    f"{shown(url)} cannot be downloaded: {error}; if you can get the file, put it at {place}"
                ) from error
            size = partial.size
            place.with_name(f"{place.name}.json").write_text(
                json.dumps({"url": url, SHA256: found[SHA256], "bytes": size}), encoding="utf-8"
            )
            partial.finish(place)
        _log.info("downloaded %s to %s (%d bytes)", shown(url), place, size)
        return CheckedFile(place, found[SHA256], downloaded=True)

    def _locked(self, place: Path) -> IO[bytes]:
        """Creates a path's folder, and keeps other processes and threads from writing to the path."""
        with _writing(place.parent):
            place.parent.mkdir(parents=True, exist_ok=True)
            return lock(
                place.with_name(f"{place.name}.lock"),
                lambda: _log.warning("waiting for another process that is writing %s", place),
            )


def _checked(place: Path, checksum: str, source: object) -> CheckedFile:
    """Returns a cached file if it matches its checksum, or the one recorded when it was downloaded."""
    record = place.with_name(f"{place.name}.json")
    try:
        if checksum or not is_file(record):  # without either, a user put it there
            return check_file(place, checksum, source)
        return check_file(place, f"{SHA256}:{_recorded(record)}", f"{record}, from when it was downloaded,")
    except ArtifactError as error:
        raise ArtifactError(f"{error}; remove it and {record.name} to download it again") from error


def _recorded(record: Path) -> str:
    try:
        found = json.loads(record.read_text(encoding="utf-8"))[SHA256]
        if re.fullmatch("[0-9a-f]{64}", found):
            return str(found)
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise ArtifactError(f"{record}: is damaged: {type(error).__name__}") from error
    raise ArtifactError(f"{record}: is damaged: its {SHA256} is invalid")


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turns disk errors into an error that suggests a remedy."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"the cache {folder} cannot be written: {error.strerror or error}; AGENT_CACHE_DIR can name "
            "another directory"
        ) from error


@dataclass(frozen=True, slots=True)
class Artifacts:
    """A model's verified files, and its architecture if it is built in code.

    ``weights`` is None if the graph's file contains them. ``checksums`` are the files' ``sha256:…``, keyed by
    ``graph``, ``weights`` and, for a user's file, ``architecture``. A model ``in_memory`` has no files: it is
    the object that its owner has built and keeps.
    """

    graph: Path | None = None
    weights: Path | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    architecture: Architecture | None = None
    in_memory: object | None = None

    def with_architecture(self, architecture: Architecture | None) -> Artifacts:
        """Returns the same files, with the architecture to which the weights belong."""
        checksum = architecture and architecture.checksum
        more = {"architecture": checksum} if checksum else {}
        return replace(self, architecture=architecture, checksums={**self.checksums, **more})


def resolve_artifacts(
    manifest: ModelManifest, *, weights: bool = True, cache: ArtifactCache | None = None
) -> Artifacts:
    """Finds the files of a model, downloads missing ones, and verifies all checksums.

    If ``weights`` is false, the weights file is left out. The ``cache`` downloads files and unpacks archives;
    without one, all files must be on this machine.

    Raises:
        ArtifactUnavailableError: A file is missing, or its download fails; the message names the path for a
            manual copy.
        ArtifactError: A file has another checksum.
    """
    found = model_files(manifest, weights=weights)
    try:
        if archive := found.get("archive"):
            checked = _unpacked(manifest, archive, weights, cache)
        else:
            checked = {kind: get_file(file, cache) for kind, file in found.items()}
    except ArtifactUnavailableError as error:
        if not (weights and manifest.model.architecture):
            raise
        raise ArtifactUnavailableError(f"{error}, or measure only speed with --weights=random") from error
    paths = {kind: file.path for kind, file in checked.items()}
    checksums = {kind: file.checksum for kind, file in checked.items()}
    return Artifacts(paths.get("graph"), paths.get("weights"), checksums)


def resolve_model(
    manifest: ModelManifest,
    framework: str,
    architectures: Architectures,
    cache: ArtifactCache | None = None,
    *,
    random: bool,
) -> Artifacts:
    """Finds a model's files like ``resolve_artifacts``, and its architecture if it is built in code.

    A model with ``random`` weights has no weights file. The architecture is None if the model has a graph
    file, or if a plug-in's framework builds it.

    Raises:
        ArtifactError: As in ``resolve_artifacts``; or the architecture is unknown, or random weights are
            requested for a model that is read from a file.
    """
    architecture = None
    if (name := manifest.model.architecture) is not None:
        architecture = architectures.find(name, framework)
    elif random:
        raise ArtifactError(
            f"model {manifest.name} {manifest.version} for {framework} is read from a file, weights and "
            "all; only a model that is built in code (architecture) can have random weights"
        )
    return resolve_artifacts(manifest, weights=not random, cache=cache).with_architecture(architecture)


def get_file(file: FileReference, cache: ArtifactCache | None = None) -> CheckedFile:
    """Returns a file that a manifest names if it matches the checksum; without a cache, it must be local.

    Raises:
        ArtifactUnavailableError: The file is missing, or its download fails.
        ArtifactError: The file cannot be read, or has another checksum.
    """
    source = file.manifest.source
    local = file.local()
    if local is not None:
        return check_file(local, file.checksum, source)
    if file.url is None:
        raise ArtifactUnavailableError(f"{source}: the file {file.candidates[0]} is missing")
    where = f"{source}: field {file.field}: {shown(file.url)}"
    if not file_name(file.url):
        raise ArtifactUnavailableError(f"{where}: the URL has no file name")
    if file.scheme == "file":
        raise ArtifactUnavailableError(f"{where}: the file {file.candidates[-1]} is missing")
    if file.scheme not in DOWNLOADED:
        raise ArtifactUnavailableError(
            f"{where}: {file.scheme} is not supported, but https, http and file are; get the file, and "
            f"put it at {file.candidates[-1]}"
        )
    if cache is None:
        raise ArtifactUnavailableError(
            f"{where} is not downloaded; get the file, and put it at {file.candidates[-1]}"
        )
    try:
        return cache.fetch(file.url, file.checksum, source)
    except ArtifactUnavailableError as error:
        raise ArtifactUnavailableError(f"{source}: field {file.field}: {error}") from error


def _unpacked(
    manifest: ModelManifest, archive: FileReference, weights: bool, cache: ArtifactCache | None
) -> dict[str, CheckedFile]:
    """Returns the files of a model in an archive; paths and checksums refer to its content."""
    files, source = manifest.model, manifest.source
    if not files.base_url:
        raise ArtifactError(
            f"{source}: field {archive.field}: is missing; with is_archive, it names the archive"
        )
    checked = get_file(archive, cache)
    if cache is None:
        raise ArtifactError(
            f"{source}: field model.is_archive: there is no cache to unpack {checked.path} into"
        )
    unpacked = cache.unpack(checked)
    found = {}
    if files.graph_path is not None:
        found["graph"] = unpacked.file(files.graph_path, files.graph_checksum, source)
    if weights and files.weights_path is not None:
        found["weights"] = unpacked.file(files.weights_path, files.weights_checksum, source)
    return found


@dataclass(frozen=True, slots=True)
class InputSignature:
    """One input of a model.

    An element type, NumPy's name, or a shape of None is not declared. A shape begins with the batch; an open
    size is None.
    """

    name: str
    element_type: str | None = None
    shape: tuple[int | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """The inputs and outputs of a model, and further data that an evaluation records about it.

    Attributes:
        inputs: The inputs, not including weights.
        graph: The file of the graph; None for a model in memory.
        weights: The file of the weights; None if the graph's file contains them.
        notes: Notes about the format for the user, one line each.
        attributes: Properties that identify a model in memory, such as its class.
        checksums: Checksums of a model in memory, such as that of its parameters.
        outputs: The outputs, as far as the file declares them.
        operators: The operator that computes each output, such as ``Softmax``, by the output's name.
        classes: The names of the classes that the file contains, in the order of its scores.
    """

    inputs: tuple[InputSignature, ...]
    graph: Path | None = None
    weights: Path | None = None
    notes: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[InputSignature, ...] = ()
    operators: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()


def with_labels(
    manifest: ModelManifest, *, needed: bool = True, cache: ArtifactCache | None = None
) -> ModelManifest:
    """Returns the manifest with the labels from the file at ``features_url``, if it names one.

    If the file is not available, the manifest's own labels are kept. If there is no ``cache``, the file must
    be beside the manifest.

    Raises:
        ArtifactUnavailableError: Labels are ``needed``, the file is not available, and the manifest has none.
        ArtifactError: The file has another checksum, or is not text.
    """
    file = labels_file(manifest)
    if file is None:
        return manifest
    parameters = manifest.output.parameters
    try:
        path = get_file(file, cache).path
    except ArtifactUnavailableError as error:
        if needed and not parameters.labels:
            raise ArtifactUnavailableError(f"{error}; without it the model has no labels") from error
        level = logging.WARNING if needed else logging.INFO
        _log.log(level, "the labels of the manifest are used, if any: %s", error)
        return manifest
    output = manifest.output.model_copy(
        update={"parameters": parameters.model_copy(update={"labels": _labels(path)})}
    )
    changed = manifest.model_copy(update={"output": output})
    changed._source = manifest.source
    return changed


def _labels(path: Path) -> tuple[str, ...]:
    """Reads one label per line; blank lines at the end are ignored."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: the labels cannot be read: {' '.join(str(error).split())}") from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise ArtifactError(f"{path}: holds no labels")
    return tuple(line.strip() for line in lines)
