"""A model's files: where they are on this machine, and that they are the ones which the manifest means."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from manifests.errors import ArtifactError
from manifests.schema import Manifest, ModelManifest

_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Artifacts:
    """A model's files, checked.

    Attributes:
        graph: The file with the graph, where the model has one.
        weights: The file with the weights, where they are not in the graph's.
        checksums: ``sha256:…`` of each, by ``graph`` and ``weights``.
    """

    graph: Path | None = None
    weights: Path | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)


def resolve_artifacts(manifest: ModelManifest, *, weights: bool = True) -> Artifacts:
    """Finds the files of a model and compares them with their checksums.

    Args:
        manifest: The model.
        weights: Whether the file with the weights is wanted.

    Raises:
        ArtifactError: A file is missing, or is not the one that the checksum is of.
    """
    files = manifest.model
    graph = resolve_file(manifest, files.graph_path, files.graph_checksum)
    weights_file = resolve_file(manifest, files.weights_path, files.weights_checksum) if weights else None
    found = {"graph": graph, "weights": weights_file}
    checksums = {kind: f"sha256:{digest(path)}" for kind, path in found.items() if path}
    return Artifacts(graph, weights_file, checksums)


def resolve_file(manifest: Manifest, path: str | None, checksum: str) -> Path | None:
    """Returns the file at ``path``, relative to the manifest's folder, if it has the ``checksum``.

    Args:
        manifest: Whose file it is.
        path: None gives None.
        checksum: ``sha256:…``, an MD5 in hexadecimal, or empty for no check.

    Raises:
        ArtifactError: The file is missing, cannot be read or has another checksum.
    """
    if path is None:
        return None
    resolved = Path(path) if manifest.source is None else manifest.source.parent / path
    if not resolved.is_file():
        raise ArtifactError(f"{manifest.source}: the file {resolved} is missing")
    algorithm, _, expected = checksum.rpartition(":")
    if expected and (actual := digest(resolved, algorithm or "md5")) != expected.casefold():
        raise ArtifactError(
            f"{resolved}: is changed or truncated: its {algorithm or 'md5'} is {actual}, "
            f"{manifest.source} says {expected}"
        )
    return resolved


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Returns the digest of a file's content in hexadecimal.

    Raises:
        ArtifactError: The file cannot be read.
    """
    state = hashlib.new(algorithm, usedforsecurity=False)
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                state.update(chunk)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from error
    return state.hexdigest()
