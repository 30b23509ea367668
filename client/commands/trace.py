"""``agent trace``: exports stored traces to formats that other programs read, and sends them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from inferometer.client.cli.command import (
    FILE,
    Command,
    Group,
    boolean,
    current_invocation,
    database_options,
    evaluations_argument,
    format_option,
    option,
)
from inferometer.client.cli.options import tracer_options
from inferometer.manifests.errors import ConfigurationError, OutputError, StoreError

if TYPE_CHECKING:
    from inferometer.evaluators.evaluation import Evaluation, TraceSummary
    from inferometer.evaluators.traces.export import Spans

_MOST_WAITING = 100_000
"""The number of spans that may wait to be sent before more are read."""


@click.group(cls=Group)
def trace() -> None:
    """Export stored traces in formats that other programs read, or send them to a collector."""


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
    from inferometer.client.api.results import find_one
    from inferometer.evaluators.reports.writer import OutputFile

    if overwrite and output is None:
        raise ConfigurationError("--overwrite is for a file; name one with --output")
    file = OutputFile(output, appendable=False) if output else None
    if file is not None and file.exists() and not overwrite:
        raise file.in_the_way()
    with closing(current_invocation().open_store()) as store:
        evaluation = find_one(store, evaluation_id)
        _trace_of(evaluation)
        pieces = _written(evaluation, partial(store.spans, evaluation.id), format_name.lower())
        if file is None:
            for piece in pieces:
                sys.stdout.write(piece)
            sys.stdout.flush()
        else:
            file.write(pieces, overwrite=overwrite)


@trace.command(cls=Command)
@evaluations_argument("evaluation_id", metavar="ID")
@tracer_options
@database_options
def send(evaluation_id: str, tracer_address: str | None, trace_url: str | None) -> None:
    """Send the trace of an evaluation to a collector, for instance one that was unavailable.

    A collector that has some of the spans already may show them twice.
    """
    from inferometer.agent.tracing.exporting import TraceAddress, TraceExport, TraceLink
    from inferometer.client.api.results import find_one

    invocation = current_invocation()
    tracer = invocation.configuration.tracer
    if (given := tracer_address or tracer.address) is None:
        raise ConfigurationError("no collector is named; give one with --tracer_address")
    address, url = TraceAddress.parse(given), trace_url or tracer.url
    link = address.trace_url if url is None else TraceLink.parse(url).of
    with closing(invocation.open_store()) as store:
        evaluation = find_one(store, evaluation_id)
        trace_id = _trace_of(evaluation).trace_id
        export = TraceExport.open(address, tuple(_resource(evaluation).items()))
        try:
            for chunk in store.spans(evaluation.id):
                export.send(trace_id, [chunk])
                if not export.wait_below(_MOST_WAITING):
                    break
        finally:
            report = export.close()
    if report.undelivered:
        raise OutputError(f"evaluation {evaluation_id}: {report}")
    click.echo(str(report))
    click.echo(link(trace_id))


def _trace_of(evaluation: Evaluation) -> TraceSummary:
    """Returns the trace of an evaluation; raises StoreError if it has none."""
    if evaluation.trace is None:
        reason = f"it was run with --trace_level={evaluation.trace_level.name}"
        raise StoreError(f"evaluation {evaluation.id} has no trace: {reason}")
    return evaluation.trace


def _resource(evaluation: Evaluation) -> dict[str, str]:
    """Returns the resource attributes for spans that have none, such as spans from earlier versions."""
    environment = evaluation.system.environment
    resource = {"service.name": "inferometer", "service.version": environment.inferometer_version}
    if environment.is_known:
        resource["host.name"] = environment.hostname
    return resource


def _written(evaluation: Evaluation, spans: Spans, format_name: str) -> Iterator[str]:
    from inferometer.evaluators.traces.export import chrome_trace, flame_graph_svg, otlp_json

    manifest, trace_id = evaluation.system.manifest, evaluation.trace.trace_id if evaluation.trace else ""
    if format_name == "chrome":
        return chrome_trace(spans(), "inferometer")
    if format_name == "otlp-json":
        return otlp_json(spans(), trace_id, _resource(evaluation))
    title = (
        f"{manifest.name} {manifest.version} on {manifest.framework.name} "
        f"{evaluation.system.framework_version}, batches of {evaluation.measurement.batch_size}"
    )
    return iter([flame_graph_svg(spans, title)])
