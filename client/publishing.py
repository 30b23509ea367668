"""Publishing an evaluation, or keeping it in a file when the database is gone."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from evaluators.evaluation import Evaluation
from evaluators.store.base import EvaluationStore
from evaluators.store.spool import write_spool
from manifests.errors import StoreError


def publish(
    evaluation: Evaluation, store: EvaluationStore, data_directory: Path, show: Callable[[], None]
) -> None:
    """Publishes the evaluation and shows it, or keeps it in a file when the database is gone.

    Raises:
        StoreError: It was kept in a file; the message says where, and how to publish it later.
    """
    try:
        store.save(evaluation)
    except StoreError as error:
        with suppress(OSError):  # where it is kept has to be said in any case
            show()
        path = write_spool(evaluation, data_directory / "unpublished")
        raise StoreError(
            f"{error}; the evaluation was kept in {path}: publish it later, with the same --database_address "
            f"and --database_name, by: agent database import {shlex.quote(str(path))}"
        ) from error
    show()
    click.echo(f"published   {evaluation.id} to {store.location}")
