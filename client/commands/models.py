"""The commands for the files of models: ``agent download``, ``agent export`` and ``agent manifest``."""

from __future__ import annotations

import importlib
import itertools
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from inferometer.client.cli.command import (
    FILE,
    SEED,
    WEIGHTS,
    Command,
    Group,
    boolean,
    current_invocation,
    option,
    tensor_shape,
)
from inferometer.client.cli.output import EXIT_CODES, SUCCESS
from inferometer.manifests.errors import (
    ArtifactError,
    ArtifactUnavailableError,
    ConfigurationError,
    ManifestError,
    OutputError,
    UnknownModelError,
    explained,
    printable,
)

if TYPE_CHECKING:
    from inferometer.agent.artifacts.files import ArtifactCache
    from inferometer.agent.artifacts.locations import FileReference
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
            raise UnknownModelError(
                f"there is no manifest for {framework_name}; there are manifests for: {have}"
            )
        found = fitting
    return CacheFilling(invocation.cache).fill_models(found)


@download.command(cls=Command)
@option("--dataset_name", required=True, metavar="NAME", help="Dataset.")
@option("--dataset_category", metavar="NAME", help="Category of the dataset.  [default: any]")
def dataset(dataset_name: str, dataset_category: str | None) -> int:
    """Download and verify a dataset."""
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
            The exit code: that of ``ArtifactError`` if a file could not be obtained.
        """
        from inferometer.agent.artifacts.files import resolve_artifacts
        from inferometer.agent.artifacts.locations import labels_file, model_files

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
        """Downloads a dataset, and returns the exit code; see ``fill_models``.

        Raises:
            ArtifactUnavailableError: Users have to obtain the dataset themselves.
        """
        from inferometer.agent.artifacts.locations import refer

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
        """Downloads and verifies a file unless it is local; returns whether the file is usable."""
        from inferometer.agent.artifacts.locations import DOWNLOADED

        if file.scheme not in DOWNLOADED and file.local():
            return True
        key = (file.url or str(file.candidates), file.checksum)
        if key not in self._done:
            self._done[key] = self._attempt(partial(self._download, file))
        return self._done[key]

    def _download(self, file: FileReference) -> None:
        from inferometer.agent.artifacts.files import get_file

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


_FRAMEWORK = "PyTorch"


@click.command(cls=Command)
@option("--model_name", required=True, metavar="NAME", help="Model.")
@option(
    "--model_version",
    metavar="VERSION",
    help="Version or constraint.  [default: the highest that has the weights]",
)
@option("--weights", type=WEIGHTS, default="pretrained", help="Weights to export.")
@option("--seed", type=SEED, default=0, metavar="N", help="Seed of random weights.")
@option("-o", "--output", required=True, type=FILE, metavar="FILE", help="The .onnx file.")
def export(model_name: str, model_version: str | None, weights: str, seed: int, output: Path) -> None:
    """Export a PyTorch model as an ONNX graph for batches of any size.

    The file is written completely or not at all; an existing file is not replaced.
    """
    from inferometer.agent.artifacts.files import resolve_artifacts
    from inferometer.agent.hardware.environment import PredictorOptions, Weights
    from inferometer.agent.inference.requirements import require_supported
    from inferometer.agent.inference.session import select_model

    invocation = current_invocation()
    if output.exists():
        raise OutputError(f"{output}: exists; name another file, or remove it")
    if not output.parent.is_dir():
        raise OutputError(f"{output}: the folder {output.parent} does not exist")
    chosen = Weights(weights.lower())
    manifest = select_model(
        invocation.catalog, invocation.registry, model_name, model_version, _FRAMEWORK, chosen
    )
    artifacts = resolve_artifacts(
        require_supported(manifest, generates=True),
        weights=chosen is Weights.PRETRAINED,
        cache=invocation.cache,
    )
    if manifest.model.architecture is not None:
        found = invocation.architectures.find(manifest.model.architecture, _FRAMEWORK)
        artifacts = artifacts.with_architecture(found)
    waiting = invocation.waiting
    with waiting.during("importing PyTorch"):
        pytorch = importlib.import_module("inferometer.agent.frameworks.pytorch.predictor")
    options = PredictorOptions(weights=chosen, seed=seed)
    with (
        explained(OutputError, f"{output}: cannot be written"),
        waiting.during(f"exporting {manifest.name} {manifest.version}"),
        tempfile.TemporaryDirectory(dir=output.parent, prefix=".export-") as folder,
        pytorch.PyTorchPredictor(manifest, artifacts, options) as predictor,
    ):
        partial = Path(folder) / "model.onnx"
        predictor.export_onnx(partial)
        partial.rename(output)
    click.echo(f"exported    {manifest.name} {manifest.version} to {output} ({output.stat().st_size} bytes)")


@click.group(cls=Group)
def manifest() -> None:
    """Check manifests, write one for a model's file, and print their schema."""


@manifest.command(cls=Command)
@click.argument("paths", metavar="FILE…", nargs=-1, required=True, type=click.Path(path_type=Path))
def check(paths: tuple[Path, ...]) -> int:
    """Check that each FILE is a valid manifest; for a directory, check all manifests in it.

    Below a valid model are its files that can run code, and unsupported features that prevent opening
    the model. The exit code is that of an invalid manifest if any file is not a valid one.
    """
    from inferometer.manifests.files import files_in

    code = SUCCESS
    listed = ((path.is_dir() and files_in(path)) or (path,) for path in paths)
    for file in itertools.chain.from_iterable(listed):
        try:
            lines = _described(file)
        except ManifestError as error:
            click.echo(" ".join(str(error).split()), err=True)
            code = EXIT_CODES[ManifestError]
        else:
            click.echo("\n".join(lines))
    return code


def _described(file: Path) -> list[str]:
    """Describes the manifest in a file, and lists the unsupported features that it uses."""
    from inferometer.agent.hardware.environment import container_architecture
    from inferometer.agent.inference.requirements import code_of, unsupported
    from inferometer.manifests.loader import load_manifest
    from inferometer.manifests.schema import FrameworkManifest, ModelManifest

    if file.is_dir():
        raise ManifestError(f"{file}: holds no manifest: no file in it ends in .yml or .yaml")
    found = load_manifest(file)
    if isinstance(found, ModelManifest):
        machine = container_architecture()
        needs = f"{found.framework.name} {found.framework.version}"
        return [
            f"{file}: model {found.name} {found.version} for {needs}",
            f"  {code_of(found)}",
            *(f"  cannot be opened: {line}" for line in unsupported(found, machine)),
        ]
    kind = "framework" if isinstance(found, FrameworkManifest) else "dataset"
    return [f"{file}: {kind} {getattr(found, 'name', '')} {getattr(found, 'version', '')}"]


@manifest.command(cls=Command)
@click.argument("model", metavar="MODEL", type=FILE)
@option("-o", "--output", type=FILE, metavar="FILE", help="The manifest.  [default: MODEL's name with .yml]")
@option(
    "--input_shape",
    type=tensor_shape,
    metavar="SIZES",
    help="Input shape without the batch, such as 3,224,224.  [default: the file's]",
)
@option("--name", metavar="NAME", help="Name of the model.  [default: that of the file]")
@boolean("--overwrite", help="Replace an existing manifest.")
def init(
    model: Path, output: Path | None, input_shape: tuple[int, ...] | None, name: str | None, overwrite: bool
) -> None:
    """Write a manifest for a model's file, with comments that say what to fill in.

    MODEL is a file that --model_path of agent predict accepts. The manifest is valid as it is; its
    comments list what MODEL does not contain, such as the labels and the mean of the training images.
    The command guesses the task from the outputs. A comment states how certain the guess is: certain,
    likely or guess. A task that is only a guess is written as a comment.
    """
    from inferometer.agent.artifacts.downloads import digest
    from inferometer.agent.inference.given_models import Wanted, model_of_file
    from inferometer.evaluators.reports.writer import OutputFile
    from inferometer.manifests.loader import manifest_text

    if output is not None and not overwrite:  # before a large model is read
        OutputFile(output, appendable=False).refuse_existing()
    wanted = Wanted(shape=input_shape, images=True, name=name)
    given = model_of_file(model, current_invocation().registry, wanted)
    files = given.manifest.model
    target = output or model.parent / f"{given.manifest.name}.yml"
    file = OutputFile(target, appendable=False)
    if not overwrite:
        file.refuse_existing()
    named = [each for each in (files.graph_path, files.weights_path) if each is not None]
    checksums = {each: f"sha256:{digest(model.parent / each)}" for each in named}
    text = manifest_text(
        given.manifest, model.parent, target.parent, checksums, given.task, given.fixed_batch
    )
    file.write(text, overwrite=overwrite)
    for note in (*given.notes, f"task {given.task[0]['type']}, {given.task[1]}, because {given.task[2]}"):
        click.echo(printable(note), err=True)
    click.echo(f"written     {printable(str(target))}")


@manifest.command(cls=Command)
def schema() -> None:
    """Print the JSON Schema of manifests, for editors that validate and complete YAML."""
    import json

    from inferometer.manifests.loader import manifest_schema

    click.echo(json.dumps(manifest_schema(), indent=2))
