"""``agent manifest``: checks manifests, and prints the schema that they have to fit."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Sequence
from pathlib import Path

import click

from client.command import Command, Group


@click.group(cls=Group)
def manifest() -> None:
    """Check manifests, and print the schema that they have to fit."""


@manifest.command(cls=Command)
@click.argument("paths", metavar="FILE…", nargs=-1, required=True, type=click.Path(path_type=Path))
def check(paths: tuple[Path, ...]) -> int:
    """Check that each FILE is a valid manifest; of a directory, all that are in it.

    What a valid model asks for, and would be refused when it is opened, is said below it. The exit code is
    that of a bad manifest if one of the files is none.
    """
    from client.exit_codes import EXIT_CODES, SUCCESS
    from manifests.errors import ManifestError

    code = SUCCESS
    for file in itertools.chain.from_iterable(map(_files, paths)):
        try:
            lines = _described(file)
        except ManifestError as error:
            click.echo(" ".join(str(error).split()), err=True)
            code = EXIT_CODES[ManifestError]
        else:
            click.echo("\n".join(lines))
    return code


def _files(path: Path) -> Sequence[Path]:
    """The files to be checked: the one that is named, or those in a directory."""
    from manifests.files import files_in

    return (path.is_dir() and files_in(path)) or (path,)


def _described(file: Path) -> list[str]:
    """What the manifest in a file is of, and what of it is not supported.

    Raises:
        ManifestError: It is none.
    """
    from agent.environment import container_architecture
    from agent.requirements import unsupported
    from manifests.errors import ManifestError
    from manifests.loader import load_manifest
    from manifests.schema import FrameworkManifest, ModelManifest

    if file.is_dir():
        raise ManifestError(f"{file}: holds no manifest: no file in it ends in .yml or .yaml")
    found = load_manifest(file)
    if isinstance(found, ModelManifest):
        machine = container_architecture(platform.machine())
        needs = f"{found.framework.name} {found.framework.version}"
        return [
            f"{file}: model {found.name} {found.version} for {needs}",
            *(f"  cannot be opened: {line}" for line in unsupported(found, machine)),
        ]
    kind = "framework" if isinstance(found, FrameworkManifest) else "dataset"
    return [f"{file}: {kind} {getattr(found, 'name', '')} {getattr(found, 'version', '')}"]


@manifest.command(cls=Command)
def schema() -> None:
    """Print the JSON Schema of manifests, for editors that check and complete YAML."""
    import json

    from manifests.loader import manifest_schema

    click.echo(json.dumps(manifest_schema(), indent=2))
