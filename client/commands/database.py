"""``agent database``: publishes evaluations from files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from inferometer.client.cli.command import Command, Group, database_options
from inferometer.client.cli.current import current_invocation
from inferometer.client.cli.paths import FILE


@click.group(cls=Group)
def database() -> None:
    """Publish results that are kept in files."""


@database.command("import", cls=Command)
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE…")
@database_options
def import_(files: tuple[Path, ...]) -> None:
    """Publish evaluations that could not be published when they ended.

    All files are read before the first one is published. Published evaluations are not published again.
    """
    from inferometer.evaluators.store.json_text import read_spool

    evaluations = [read_spool(path) for path in files]
    with closing(current_invocation().open_store()) as store:
        for path, evaluation in zip(files, evaluations, strict=True):
            if store.save(evaluation):
                click.echo(f"published   {evaluation.id} from {path} to {store.location}")
            else:
                click.echo(f"unchanged   {evaluation.id} from {path} is in {store.location} already")
