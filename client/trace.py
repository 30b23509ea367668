"""``agent trace``: stored traces in the formats that other programs read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from client.command import Command, Group, boolean, database_options
from client.invocation import current_invocation
from manifests.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from evaluators.evaluation import Evaluation
    from evaluators.store.base import EvaluationStore
    from evaluators.traces.frames import Spans

_FORMATS = ("chrome", "otlp-json", "flamegraph")


@click.group(cls=Group)
def trace() -> None:
    """Stored traces in the formats that other programs read."""


@trace.command(cls=Command)
@click.argument("evaluation_id", metavar="ID")
@click.option(
    "-f",
    "--format",
    "format_name",
    type=click.Choice(_FORMATS, case_sensitive=False),
    default="chrome",
    show_default=True,
    help="What is written.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to this file.")
@boolean("--overwrite", help="Replace the file if it exists.")
@database_options
def export(
    evaluation_id: str,
    format_name: str,
    output: Path | None,
    overwrite: bool,
    database_address: str | None,
    database_name: str | None,
) -> None:
    """Write the trace of an evaluation.

    \b
    chrome      Chrome's trace events: for ui.perfetto.dev and chrome://tracing
    otlp-json   OpenTelemetry's JSON, for a collector
    flamegraph  a picture, SVG, that a browser shows
    """  # noqa: D301 - the backspace tells click to leave the lines as they are
    from evaluators.reports.output_file import OutputFile

    if overwrite and output is None:
        raise ConfigurationError("--overwrite is for a file; name one with --output")
    file = OutputFile(output, appendable=False) if output else None
    if file is not None and file.exists() and not overwrite:
        raise file.in_the_way()
    store = current_invocation().open_store(database_address, database_name)
    try:
        evaluation = _traced(store, evaluation_id)
        pieces = _written(evaluation, partial(store.spans, evaluation.id), format_name.lower())
        if file is None:
            for piece in pieces:
                sys.stdout.write(piece)
            sys.stdout.flush()
        elif overwrite:
            file.replace(pieces)
        else:
            file.create(pieces)
    finally:
        store.close()


def _traced(store: EvaluationStore, evaluation_id: str) -> Evaluation:
    """The evaluation with an id.

    Raises:
        StoreError: There is none, or it has no trace.
    """
    from client.reports.show import find_one

    evaluation = find_one(store, evaluation_id)
    if evaluation.trace is None:
        level = evaluation.options.trace_level.name
        raise StoreError(f"evaluation {evaluation_id} has no trace: it was run with --trace_level={level}")
    return evaluation


def _written(evaluation: Evaluation, spans: Spans, format_name: str) -> Iterator[str]:
    from evaluators.traces.chrome_trace import chrome_trace
    from evaluators.traces.flame_graph import flame_graph_svg
    from evaluators.traces.otlp_json import otlp_json

    manifest, trace_id = evaluation.system.manifest, evaluation.trace.trace_id if evaluation.trace else ""
    if format_name == "chrome":
        return chrome_trace(spans(), "inferscope")
    if format_name == "otlp-json":
        environment = evaluation.system.environment
        resource = {
            "service.name": "inferscope",
            "service.version": environment.inferscope_version,
        }
        if environment.is_known:
            resource["host.name"] = environment.hostname
        return otlp_json(spans(), trace_id, resource)
    title = (
        f"{manifest.name} {manifest.version} on {manifest.framework.name} "
        f"{evaluation.system.framework_version}, batches of {evaluation.options.batch_size}"
    )
    return iter([flame_graph_svg(spans, title)])
