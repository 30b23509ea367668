"""A model's files: located or downloaded, and verified against the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from inferometer.agent.architectures.architecture import Architecture
from inferometer.agent.architectures.sources import Architectures
from inferometer.agent.artifacts.checksums import CheckedFile, check_file
from inferometer.agent.artifacts.locations import DOWNLOADED, FileReference, file_name, model_files
from inferometer.agent.artifacts.urls import shown
from inferometer.manifests.errors import ArtifactError, ArtifactUnavailableError
from inferometer.manifests.schema import ModelManifest

if TYPE_CHECKING:
    from inferometer.agent.artifacts.cache import ArtifactCache


@dataclass(frozen=True, slots=True)
class Artifacts:
    """A model's verified files, and its architecture in code.

    ``weights`` is None if they are in the graph's file. ``checksums`` are ``sha256:…`` of each, by ``graph``
    and ``weights``, and by ``architecture`` for a user's file. A model ``in_memory`` has no files: it is the
    object that its owner has built, and keeps.
    """

    graph: Path | None = None
    weights: Path | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    architecture: Architecture | None = None
    in_memory: object | None = None

    def with_architecture(self, architecture: Architecture | None) -> Artifacts:
        """Returns the same files with the model in code that the weights belong to."""
        checksum = architecture and architecture.checksum
        more = {"architecture": checksum} if checksum else {}
        return replace(self, architecture=architecture, checksums={**self.checksums, **more})


def resolve_artifacts(
    manifest: ModelManifest, *, weights: bool = True, cache: ArtifactCache | None = None
) -> Artifacts:
    """Finds the files of a model, downloads missing ones, and verifies all checksums.

    Without ``weights``, the file with the weights is left out. Without a ``cache``, which downloads files and
    unpacks archives, all files must be on this machine.

    Raises:
        ArtifactUnavailableError: A file is missing, or its download fails; the message names the path for a
            copy by hand.
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
        raise ArtifactUnavailableError(f"{error}, or measure speed alone with --weights=random") from error
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
    """Finds the files of a model as ``resolve_artifacts`` does, and its architecture if it is built in code.

    A model with ``random`` weights has no file of weights. The architecture is None if the graph is a file,
    or if a plug-in's framework builds it.

    Raises:
        ArtifactError: As ``resolve_artifacts`` says; or the architecture is unknown; or a model that is read
            from a file is to have random weights.
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
    """Returns a file that a manifest names, if it has the expected checksum; without a cache, a local one.

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
