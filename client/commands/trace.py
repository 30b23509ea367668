"""``agent trace``: exports stored traces in formats that other programs read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from inferometer.client.cli.command import (
    Command,
    Group,
    boolean,
    database_options,
    evaluations_argument,
    format_option,
    option,
)
from inferometer.client.cli.invocation import current_invocation
from inferometer.client.cli.paths import FILE
from inferometer.manifests.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from inferometer.evaluators.evaluation import Evaluation
    from inferometer.evaluators.traces.frames import Spans


@click.group(cls=Group)
def trace() -> None:
    """Export stored traces in formats that other programs read."""


@trace.command(cls=Command)
@evaluations_argument("evaluation_id", metavar="ID")
@format_option("chrome", "otlp-json", "flamegraph", help="Format of the file.")
@option("-o", "--output", type=FILE, metavar="FILE", help="Write to this file.")
@boolean("--overwrite", help="Replace the file if it exists.")
@database_options
def export(evaluation_id: str, format_name: str, output: Path | None, overwrite: bool) -> None:
    """Write the trace of an evaluation.

    \b
    chrome      Chrome's trace events: for ui.perfetto.dev and chrome://tracing
    otlp-json   OpenTelemetry's JSON, for a collector
    flamegraph  an SVG image for a browser
    """  # noqa: D301 - the backspace tells click not to wrap the lines
    from inferometer.client.reports.show import find_one
    from inferometer.evaluators.reports.output_file import OutputFile

    if overwrite and output is None:
        raise ConfigurationError("--overwrite is for a file; name one with --output")
    file = OutputFile(output, appendable=False) if output else None
    if file is not None and file.exists() and not overwrite:
        raise file.in_the_way()
    with closing(current_invocation().open_store()) as store:
        evaluation = find_one(store, evaluation_id)
        if evaluation.trace is None:
            reason = f"it was run with --trace_level={evaluation.trace_level.name}"
            raise StoreError(f"evaluation {evaluation_id} has no trace: {reason}")
        pieces = _written(evaluation, partial(store.spans, evaluation.id), format_name.lower())
        if file is None:
            for piece in pieces:
                sys.stdout.write(piece)
            sys.stdout.flush()
        elif overwrite:
            file.replace(pieces)
        else:
            file.create(pieces)


def _written(evaluation: Evaluation, spans: Spans, format_name: str) -> Iterator[str]:
    from inferometer.evaluators.traces.chrome_trace import chrome_trace
    from inferometer.evaluators.traces.flame_graph import flame_graph_svg
    from inferometer.evaluators.traces.otlp_json import otlp_json

    manifest, trace_id = evaluation.system.manifest, evaluation.trace.trace_id if evaluation.trace else ""
    if format_name == "chrome":
        return chrome_trace(spans(), "inferometer")
    if format_name == "otlp-json":
        environment = evaluation.system.environment
        resource = {"service.name": "inferometer", "service.version": environment.inferometer_version}
        if environment.is_known:
            resource["host.name"] = environment.hostname
        return otlp_json(spans(), trace_id, resource)
    title = (
        f"{manifest.name} {manifest.version} on {manifest.framework.name} "
        f"{evaluation.system.framework_version}, batches of {evaluation.measurement.batch_size}"
    )
    return iter([flame_graph_svg(spans, title)])
