"""``agent download``: downloads the files of models and datasets into the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import click

from inferometer.agent.artifacts.files import ArtifactCache, get_file, resolve_artifacts
from inferometer.agent.artifacts.locations import DOWNLOADED, FileReference, labels_file, model_files, refer
from inferometer.client.cli.command import Command, Group, boolean, option
from inferometer.client.cli.output import EXIT_CODES, SUCCESS
from inferometer.manifests.errors import ArtifactError, ArtifactUnavailableError
from inferometer.manifests.schema import DatasetManifest, ModelManifest


@click.group(cls=Group)
def download() -> None:
    """Download the files of models and datasets into the cache, for use without a network."""


@download.command(cls=Command)
@option("--model_name", metavar="NAME", help="Model.")
@option("--model_version", metavar="VERSION", help="Version or constraint.  [default: all]")
@option("--framework_name", metavar="NAME", help="Framework.  [default: all, installed or not]")
@boolean("--all", "every", help="All models that are not hidden.")
def models(model_name: str | None, model_version: str | None, framework_name: str | None, every: bool) -> int:
    """Download and verify graphs, weights and labels, and print the path of each file.

    Failures are reported on stderr; the other files are still downloaded.
    """
    from inferometer.client.cli.command import current_invocation
    from inferometer.manifests.errors import ConfigurationError, UnknownModelError

    if every == (model_name is not None) or (every and model_version is not None):
        raise ConfigurationError("give either --model_name, which --model_version can limit, or --all")
    invocation = current_invocation()
    catalog = invocation.catalog
    found = catalog.models if model_name is None else catalog.find_models(model_name, model_version)
    if framework_name is not None:
        framework = invocation.registry.find(framework_name).name.casefold()
        fitting = tuple(m for m in found if m.framework.name.casefold() == framework)
        if not fitting and found:
            have = ", ".join(sorted({m.framework.name for m in found}))
            raise UnknownModelError(f"no manifest is for {framework_name}; there are some for: {have}")
        found = fitting
    return CacheFilling(invocation.cache).fill_models(found)


@download.command(cls=Command)
@option("--dataset_name", required=True, metavar="NAME", help="Dataset.")
@option("--dataset_category", metavar="NAME", help="Category of the dataset.  [default: any]")
def dataset(dataset_name: str, dataset_category: str | None) -> int:
    """Download and verify a dataset."""
    from inferometer.client.cli.command import current_invocation

    invocation = current_invocation()
    manifest = invocation.catalog.find_dataset(dataset_name, category=dataset_category)
    return CacheFilling(invocation.cache).fill_dataset(manifest)


class CacheFilling:
    """Downloads files into the cache, and prints one line for each."""

    def __init__(self, cache: ArtifactCache) -> None:
        self._cache = cache
        self._done: dict[tuple[str, str], bool] = {}
        self._failures = 0

    def fill_models(self, manifests: Iterable[ModelManifest]) -> int:
        """Downloads graphs, weights and labels, and unpacks archives.

        A file that several models share is downloaded and printed once.

        Returns:
            The exit code: that of ``ArtifactError`` if a file failed.
        """
        count = 0
        for manifest in manifests:
            count += 1
            files = [*model_files(manifest).values(), labels_file(manifest)]
            good = [self._bring(file) for file in files if file is not None]
            if manifest.model.is_archive and all(good):
                self._attempt(partial(resolve_artifacts, manifest, cache=self._cache))
        if not self._done and not self._failures:
            click.echo(f"nothing to download: what the models need ({count} manifests) is on this machine")
        return self._code()

    def fill_dataset(self, manifest: DatasetManifest) -> int:
        """Downloads a dataset; see ``fill_models``.

        Raises:
            ArtifactUnavailableError: Users have to obtain the dataset themselves.
        """
        if not manifest.path:
            raise ArtifactUnavailableError(f"dataset {manifest.name} cannot be downloaded: {manifest.obtain}")
        file = refer(manifest, "path", manifest.path, manifest.checksum)
        if file.url is None:
            click.echo(f"nothing to download: {manifest.name} is on this machine, at {file.candidates[0]}")
            return SUCCESS
        self._bring(file)
        return self._code()

    def _code(self) -> int:
        return EXIT_CODES[ArtifactError] if self._failures else SUCCESS

    def _bring(self, file: FileReference) -> bool:
        """Downloads and verifies a file unless it is local; returns whether it is usable."""
        if file.scheme not in DOWNLOADED and file.local():
            return True
        key = (file.url or str(file.candidates), file.checksum)
        if key not in self._done:
            self._done[key] = self._attempt(partial(self._download, file))
        return self._done[key]

    def _download(self, file: FileReference) -> None:
        found = get_file(file, self._cache)
        state = "downloaded" if found.downloaded else "already there"
        click.echo(f"{state:<14}{found.path.stat().st_size:>13} bytes  {found.path}")

    def _attempt(self, get: Callable[[], object]) -> bool:
        """Calls ``get`` and returns whether it succeeded; reports a failure on stderr."""
        try:
            get()
        except ArtifactError as error:
            self._failures += 1
            click.echo(" ".join(str(error).split()), err=True)
            return False
        return True
