"""A model's files: brought to this machine, and compared with what the manifest means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.addresses import shown
from agent.checksums import CheckedFile, check_file
from agent.file_locations import DOWNLOADED, FileReference, file_name, model_files, refer
from agent.models.architecture import Architecture
from manifests.errors import ArtifactError, ArtifactUnavailableError
from manifests.schema import Manifest, ModelManifest

if TYPE_CHECKING:
    from agent.artifact_cache import ArtifactCache


@dataclass(frozen=True, slots=True)
class Artifacts:
    """A model's files, checked.

    Attributes:
        graph: The file with the graph, where the model has one.
        weights: The file with the weights, where they are not in the graph's.
        checksums: ``sha256:…`` of each, by ``graph`` and ``weights``; by ``architecture`` of a user's file.
        architecture: The model in code, where it is built and has no graph.
    """

    graph: Path | None = None
    weights: Path | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    architecture: Architecture | None = None

    def with_architecture(self, architecture: Architecture | None) -> Artifacts:
        """Returns the same with the model in code that the weights are of."""
        checksum = architecture and architecture.checksum
        more = {"architecture": checksum} if checksum else {}
        return replace(self, architecture=architecture, checksums={**self.checksums, **more})


def resolve_artifacts(
    manifest: ModelManifest, *, weights: bool = True, cache: ArtifactCache | None = None
) -> Artifacts:
    """Finds the files of a model, downloads those that are not there, and compares all with their checksums.

    Args:
        manifest: The model.
        weights: Whether the file with the weights is wanted.
        cache: Gets what is at a URL, and unpacks archives; with None, files are on this machine.

    Raises:
        ArtifactUnavailableError: A file is missing, or cannot be downloaded; the message says where it may be
            put by hand.
        ArtifactError: A file is not the one that the checksum is of.
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
    places = {kind: file.path for kind, file in checked.items()}
    checksums = {kind: file.checksum for kind, file in checked.items()}
    return Artifacts(places.get("graph"), places.get("weights"), checksums)


def resolve_file(
    manifest: Manifest,
    path: str,
    checksum: str,
    *,
    field: str = "path",
    cache: ArtifactCache | None = None,
) -> CheckedFile:
    """Returns the file at a path relative to the manifest's folder, or at a URL, if it has the ``checksum``.

    Args:
        manifest: Whose file it is.
        path: A path or a URL.
        checksum: See ``manifests.fields.Checksum``; empty for no check.
        field: The manifest's field that holds the path.
        cache: Gets what is at a URL; with None, it has to lie beside the manifest.

    Raises:
        ArtifactUnavailableError: The file is missing, or cannot be downloaded.
        ArtifactError: The file cannot be read, or has another checksum.
    """
    return get_file(refer(manifest, field, path, checksum), cache)


def get_file(file: FileReference, cache: ArtifactCache | None) -> CheckedFile:
    """Returns a file that a manifest names; see ``resolve_file``."""
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
    """The files of a model in an archive, whose paths and checksums are those inside."""
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
