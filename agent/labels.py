"""The names of a model's classes, from the file that its manifest names."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from agent.artifacts import get_file
from agent.file_locations import labels_file
from manifests.errors import ArtifactError, ArtifactUnavailableError
from manifests.schema import ModelManifest

if TYPE_CHECKING:
    from agent.artifact_cache import ArtifactCache

_log = logging.getLogger(__name__)


def with_labels(
    manifest: ModelManifest, *, needed: bool = True, cache: ArtifactCache | None = None
) -> ModelManifest:
    """Returns the manifest with the labels of the file that ``features_url`` names, if it names one.

    Where that file cannot be had, the manifest's own labels stay.

    Args:
        manifest: The model.
        needed: Whether it is an error that there are no labels then.
        cache: Gets what is at a URL; with None, the file has to lie beside the manifest.

    Raises:
        ArtifactUnavailableError: The file cannot be had, and the manifest has no labels of its own.
        ArtifactError: The file has another checksum, or is no text.
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
        update={"parameters": parameters.model_copy(update={"labels": _read(path)})}
    )
    changed = manifest.model_copy(update={"output": output})
    changed._source = manifest.source
    return changed


def _read(path: Path) -> tuple[str, ...]:
    """Reads a label a line; blank lines at the end are none."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: the labels cannot be read: {' '.join(str(error).split())}") from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise ArtifactError(f"{path}: holds no labels")
    return tuple(line.strip() for line in lines)
