"""``agent manifest``: checks manifests, writes a manifest for a model file, and prints the schema."""

from __future__ import annotations

import itertools
from pathlib import Path

import click

from inferometer.client.cli.command import FILE, SHAPE, Command, Group, boolean, option


@click.group(cls=Group)
def manifest() -> None:
    """Check manifests, write one for a model's file, and print their schema."""


@manifest.command(cls=Command)
@click.argument("paths", metavar="FILE…", nargs=-1, required=True, type=click.Path(path_type=Path))
def check(paths: tuple[Path, ...]) -> int:
    """Check that each FILE is a valid manifest; for a directory, check all manifests in it.

    Below a valid model is what of its files can run code, and unsupported features, for which it would be
    refused on opening. The exit code is that of an invalid manifest if any file is not a valid one.
    """
    from inferometer.client.cli.output import EXIT_CODES, SUCCESS
    from inferometer.manifests.errors import ManifestError
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
    """Describes the manifest in a file, and lists what it uses that is not supported."""
    from inferometer.agent.hardware.environment import container_architecture
    from inferometer.agent.inference.requirements import code_of, unsupported
    from inferometer.manifests.errors import ManifestError
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
    type=SHAPE,
    metavar="SIZES",
    help="Input shape without the batch, such as 3,224,224.  [default: the file's]",
)
@option("--name", metavar="NAME", help="Name of the model.  [default: that of the file]")
@boolean("--overwrite", help="Replace an existing manifest.")
def init(
    model: Path, output: Path | None, input_shape: tuple[int, ...] | None, name: str | None, overwrite: bool
) -> None:
    """Write a manifest for a model's file, with comments that say what to fill in.

    MODEL is a file as --model_path of agent predict takes it. The manifest is valid as it is; what the file
    does not tell, such as the mean of images and the labels, is in its comments.
    """
    from inferometer.agent.artifacts.downloads import digest
    from inferometer.agent.inference.given_models import Wanted, model_of_file
    from inferometer.client.cli.command import current_invocation
    from inferometer.evaluators.reports.output_file import OutputFile
    from inferometer.manifests.errors import printable
    from inferometer.manifests.loader import manifest_text

    wanted = Wanted(shape=input_shape, images=True, name=name)
    given = model_of_file(model, current_invocation().registry, wanted)
    files = given.manifest.model
    target = output or model.parent / f"{given.manifest.name}.yml"
    named = [each for each in (files.graph_path, files.weights_path) if each is not None]
    checksums = {each: f"sha256:{digest(model.parent / each)}" for each in named}
    text = manifest_text(given.manifest, model.parent, target.parent, checksums, given.fixed_batch)
    file = OutputFile(target, appendable=False)
    if overwrite:
        file.replace(text)
    else:
        file.create(text)
    for note in given.notes:
        click.echo(printable(note), err=True)
    click.echo(f"written     {printable(str(target))}")


@manifest.command(cls=Command)
def schema() -> None:
    """Print the JSON Schema of manifests, for editors that validate and complete YAML."""
    import json

    from inferometer.manifests.loader import manifest_schema

    click.echo(json.dumps(manifest_schema(), indent=2))
