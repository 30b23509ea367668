"""Filling the cache: each file is downloaded and checked, and a line says where it is."""

from __future__ import annotations

from collections.abc import Iterable

import click

from agent.artifact_cache import ArtifactCache
from agent.artifacts import get_file, resolve_artifacts
from agent.file_locations import DOWNLOADED, FileReference, labels_file, model_files, refer
from client.exit_codes import EXIT_CODES, SUCCESS
from manifests.errors import ArtifactError
from manifests.schema import DatasetManifest, ModelManifest


class CacheFilling:
    """Brings what is at URLs into the cache.

    Args:
        cache: The cache.
    """

    def __init__(self, cache: ArtifactCache) -> None:
        self._cache = cache
        self._done: dict[tuple[str, str], bool] = {}
        self._failures = 0

    def fill_models(self, manifests: Iterable[ModelManifest]) -> int:
        """Downloads graphs, weights and labels, and unpacks archives.

        A file that several models name is downloaded and told once.

        Returns:
            The exit code: that of an ``ArtifactError`` if a file failed.
        """
        count = 0
        for manifest in manifests:
            count += 1
            files = [*model_files(manifest).values(), labels_file(manifest)]
            good = [self._bring(file) for file in files if file is not None]
            if manifest.model.is_archive and all(good):
                self._check_archive(manifest)
        if not self._done and not self._failures:
            click.echo(f"nothing to download: what the models need ({count} manifests) is on this machine")
        return self._code()

    def fill_dataset(self, manifest: DatasetManifest) -> int:
        """Downloads a dataset; see ``fill_models``."""
        file = refer(manifest, "path", manifest.path, manifest.checksum)
        if file.url is None:
            click.echo(f"nothing to download: {manifest.name} is on this machine, at {file.candidates[0]}")
            return SUCCESS
        self._bring(file)
        return self._code()

    def _code(self) -> int:
        return EXIT_CODES[ArtifactError] if self._failures else SUCCESS

    def _bring(self, file: FileReference) -> bool:
        """Downloads and checks one file, unless it is on this machine anyway; says what became of it."""
        if file.scheme not in DOWNLOADED and file.local():
            return True
        key = (file.url or str(file.candidates), file.checksum)
        if key not in self._done:
            self._done[key] = self._attempt(file)
        return self._done[key]

    def _attempt(self, file: FileReference) -> bool:
        try:
            found = get_file(file, self._cache)
        except ArtifactError as error:
            self._fail(error)
            return False
        state = "downloaded" if found.downloaded else "already there"
        click.echo(f"{state:<14}{found.path.stat().st_size:>13} bytes  {found.path}")
        return True

    def _check_archive(self, manifest: ModelManifest) -> None:
        try:
            resolve_artifacts(manifest, cache=self._cache)
        except ArtifactError as error:
            self._fail(error)

    def _fail(self, error: ArtifactError) -> None:
        self._failures += 1
        click.echo(" ".join(str(error).split()), err=True)
