"""``agent database``: what is done with a database of evaluations besides reports."""

from __future__ import annotations

from pathlib import Path

import click

from client.command import Command, Group, database_options
from client.invocation import current_invocation


@click.group(cls=Group)
def database() -> None:
    """Publish results that were kept in files."""


@database.command("import", cls=Command)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE…")
@database_options
def import_(files: tuple[Path, ...], database_address: str | None, database_name: str | None) -> None:
    """Publish evaluations that could not be published when they ended.

    All files are read before the first is published. One that was published already is not published again.
    """
    from evaluators.store.spool import read_spool

    evaluations = [read_spool(path) for path in files]
    store = current_invocation().open_store(database_address, database_name)
    try:
        for path, evaluation in zip(files, evaluations, strict=True):
            if store.save(evaluation):
                click.echo(f"published   {evaluation.id} from {path} to {store.location}")
            else:
                click.echo(f"unchanged   {evaluation.id} from {path} is in {store.location} already")
    finally:
        store.close()
