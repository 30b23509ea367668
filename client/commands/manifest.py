"""``agent manifest``: checks manifests, and prints their schema."""

from __future__ import annotations

import itertools
import platform
from pathlib import Path

import click

from inferometer.client.cli.command import Command, Group


@click.group(cls=Group)
def manifest() -> None:
    """Check manifests, and print their schema."""


@manifest.command(cls=Command)
@click.argument("paths", metavar="FILE…", nargs=-1, required=True, type=click.Path(path_type=Path))
def check(paths: tuple[Path, ...]) -> int:
    """Check that each FILE is a valid manifest; for a directory, check all manifests in it.

    Below a valid model is what of its files can run code, and unsupported features, for which it would be
    refused on opening. The exit code is that of an invalid manifest if any file is not a valid one.
    """
    from inferometer.client.cli.exit_codes import EXIT_CODES, SUCCESS
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
    """Describes the manifest in a file, and what of it is not supported."""
    from inferometer.agent.hardware.environment import container_architecture
    from inferometer.agent.inference.requirements import code_of, unsupported
    from inferometer.manifests.errors import ManifestError
    from inferometer.manifests.loader import load_manifest
    from inferometer.manifests.schema import FrameworkManifest, ModelManifest

    if file.is_dir():
        raise ManifestError(f"{file}: holds no manifest: no file in it ends in .yml or .yaml")
    found = load_manifest(file)
    if isinstance(found, ModelManifest):
        machine = container_architecture(platform.machine())
        needs = f"{found.framework.name} {found.framework.version}"
        return [
            f"{file}: model {found.name} {found.version} for {needs}",
            f"  {code_of(found)}",
            *(f"  cannot be opened: {line}" for line in unsupported(found, machine)),
        ]
    kind = "framework" if isinstance(found, FrameworkManifest) else "dataset"
    return [f"{file}: {kind} {getattr(found, 'name', '')} {getattr(found, 'version', '')}"]


@manifest.command(cls=Command)
def schema() -> None:
    """Print the JSON Schema of manifests, for editors that validate and complete YAML."""
    import json

    from inferometer.manifests.loader import manifest_schema

    click.echo(json.dumps(manifest_schema(), indent=2))
