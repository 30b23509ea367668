"""The commands that show evaluations: ``agent info evaluation show`` and ``all``, and ``agent report``."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

import click

from inferometer.client.api.results import find_one, newest, others_of, readable_spans
from inferometer.client.cli.command import (
    FILE,
    WHOLE_NUMBER,
    Command,
    boolean,
    current_invocation,
    database_options,
    evaluations_argument,
    format_option,
    option,
)
from inferometer.client.cli.output import echo
from inferometer.client.commands.evaluation import (
    ChosenEvaluations,
    explain,
    filter_options,
    rows_of,
    say_left_out,
    say_none,
    undisturbed,
)
from inferometer.evaluators.drawing.writer import PictureFile
from inferometer.evaluators.evaluation import Evaluation, Measurement, SpanSource
from inferometer.evaluators.kinds.kind import timed_by
from inferometer.evaluators.kinds.registry import declared_reports, find_plot, kind_of
from inferometer.evaluators.kinds.reports import LayersReport, OverviewReport, TraceReport, heaviest
from inferometer.evaluators.kinds.summary import conditions_rows, name_width
from inferometer.evaluators.reports.base import Report, describe
from inferometer.evaluators.reports.writer import Format, OutputFile, write
from inferometer.evaluators.store.evaluation_store import EvaluationStore
from inferometer.manifests.errors import OutputError, explained, printable

_NS_PER_S = 1_000_000_000
_SOFTWARE = ("operating_system", "kernel", "python_version", "inferometer_version", "governor", "build")
_TOLD = ("libraries", "settings", "variables")


def as_document(
    evaluation: Evaluation, timed: Evaluation, group: Sequence[Evaluation], spans: SpanSource
) -> dict[str, Any]:
    """Returns everything that ``show`` reports about an evaluation, as JSON values."""
    own = kind_of(evaluation).document(evaluation, timed, spans)
    elapsed_s = evaluation.measurement.elapsed_ns / _NS_PER_S
    figures = own if "elapsed_s" in own else {"elapsed_s": elapsed_s, **own}
    found, trace = evaluation.conditions, evaluation.trace
    return {
        **describe(evaluation),
        **_system_document(evaluation),
        "dataset_name": evaluation.dataset.name,
        "sample_ids": evaluation.dataset.sample_ids,
        **figures,
        "conditions": found and {**asdict(found), "stability": found.stability.value, "text": str(found)},
        "trace": trace
        and {
            "trace_id": trace.trace_id,
            "spans": trace.span_count,
            "dropped": trace.dropped,
            "url": trace.url,
            "notes": list(trace.notes),
        },
        "group_id": evaluation.group_id,
        "group": [{"id": each.id, "trace_level": each.trace_level.name} for each in group],
    }


def _system_document(evaluation: Evaluation) -> dict[str, Any]:
    """Returns the model's files, the device, the machine and its software."""
    system, machine = evaluation.system, evaluation.system.environment
    return {
        "seed": system.seed,
        "cudnn_benchmark": system.cudnn_benchmark,
        "checksums": dict(system.checksums),
        "device": str(system.device),
        "preprocess_threads": system.preprocess_threads,
        "agent": system.agent,
        "cpu_model": machine.cpu_model,
        "usable_cores": machine.usable_cores if machine.is_known else None,
        "memory_bytes": machine.memory_bytes if machine.is_known else None,
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in machine.gpus],
        **{name: getattr(machine, name) for name in _SOFTWARE},
        **{name: dict(getattr(machine, name)) for name in _TOLD},
    }


_BYTES_PER_GIB = 1024**3
_LONGEST_NAME = 40
_INDENT = 14

Lines: TypeAlias = Iterator[tuple[str, str]]
"""The two columns of each line; the left one is empty if it is the same as in the line above."""


@click.command(cls=Command)
@evaluations_argument("evaluation_id", metavar="[ID]", required=False)
@format_option("text", "json", help="Text, or one JSON object.")
@database_options
def show(evaluation_id: str | None, format_name: str) -> None:
    """Show one evaluation: what ran, on what, the figures, the heaviest layers, and where its trace is.

    A unique prefix of the ID is enough. The default is the newest evaluation.
    """
    with closing(current_invocation().open_store()) as store:
        evaluation = newest(store, say_left_out) if evaluation_id is None else find_one(store, evaluation_id)
        group, spans = others_of(store, evaluation, say_left_out), readable_spans(store, say_left_out)
        if format_name.lower() == "json":
            shown = as_document(evaluation, timed_by(evaluation, group), group, spans)
            click.echo(json.dumps(shown, ensure_ascii=False, indent=2))
            return
        for line in lines_of(evaluation, group, spans):
            echo(line, indent=_INDENT)


def lines_of(evaluation: Evaluation, group: Sequence[Evaluation], spans: SpanSource) -> Sequence[str]:
    """Returns the lines of the text format."""
    kind = kind_of(evaluation)
    figures = kind.details(evaluation, [each for each in group if kind_of(each) is kind])
    lines = itertools.chain(_what(evaluation), _where(evaluation), figures, conditions_rows(evaluation))
    rest = itertools.chain(_layers(evaluation, spans), _trace_lines(evaluation), _group(group))
    rows = [*lines, *rest]
    width = name_width(rows, _INDENT)
    return [printable(f"{name:<{width}}{text}".rstrip()) for name, text in rows]


def _what(evaluation: Evaluation) -> Lines:
    system = evaluation.system
    manifest = system.manifest
    yield "evaluation", f"{evaluation.id}  {evaluation.status.value}"
    begun = evaluation.created_at.astimezone(timezone.utc).isoformat(sep=" ", timespec="seconds")
    yield "begun", f"{begun}, measured for {evaluation.measurement.elapsed_ns / _NS_PER_S:.3f} s"
    if kind_of(evaluation).of_a_model:
        yield "model", f"{manifest.name} {manifest.version}, weights: {system.weights_text}"
    for part, checksum in system.checksums.items():
        yield "", f"{part} {checksum}"
    if manifest.inferred:
        yield "", f"manifest {manifest.inferred}"
    yield "framework", f"{manifest.framework.name} {system.framework_version}"
    yield from kind_of(evaluation).description(evaluation)


def _where(evaluation: Evaluation) -> Lines:
    system, machine = evaluation.system, evaluation.system.environment
    threads = f", {system.threads} threads" if system.threads and not system.device.is_gpu else ""
    yield "device", f"{system.device}{threads}; {system.agent}"
    if precision := system.precision_text:
        yield "precision", precision
    if not machine.is_known:
        told = ", ".join(f"{name} {version}".rstrip() for name, version in machine.frameworks.items())
        yield "host", f"not known; the server runs the model in {told}" if told else "not known"
        return
    memory = (
        f"{machine.memory_bytes / _BYTES_PER_GIB:.0f} GiB" if machine.memory_bytes else "memory not known"
    )
    yield "host", f"{machine.hostname}: {machine.cpu_model}, {machine.usable_cores} cores, {memory}"
    programs = f"Python {machine.python_version}, inferometer {machine.inferometer_version}"
    yield "", f"{machine.operating_system}, {programs}"
    for gpu in machine.gpus:
        yield "", f"{gpu.name}, {gpu.memory_bytes / _BYTES_PER_GIB:.0f} GiB"
    if machine.governor:
        yield "", f"frequency governor {machine.governor}"
    if machine.variables:
        yield "variables", ", ".join(f"{name}={value}" for name, value in machine.variables.items())
    if machine.build:
        yield "build", machine.built_with
    for heading, texts in (("libraries", machine.libraries), ("settings", machine.settings)):
        if texts:
            yield heading, ", ".join(map(" ".join, texts.items()))


def _layers(evaluation: Evaluation, spans: SpanSource) -> Lines:
    rows = list(LayersReport().rows_of(LayersReport().taken([evaluation]), spans))
    shown = heaviest(rows)
    names = [str(row["layer_name"]) for row in shown]
    times_ms = [f"{float(row['duration_us_trimmed_mean'] or 0) / 1000:.3f}" for row in shown]
    widest = max(map(len, times_ms), default=0)
    longest = min(_LONGEST_NAME, max(map(len, names), default=0))
    for place, (row, name, time_ms) in enumerate(zip(shown, names, times_ms, strict=True)):
        name = name if len(name) <= longest else f"…{name[1 - longest :]}"
        share = float(row["share_percent"] or 0)
        shapes = str(row["input_shapes"]).partition(" ")[0]
        left = f"{share:5.1f} %  {time_ms:>{widest}} ms  {name:<{longest}}"
        yield ("" if place else "heaviest"), f"{left}  {row['layer_type']} {shapes}"
    if rows:
        yield "", f"of {len(rows)} layers; share of all, and trimmed mean under the profiler"


def _trace_lines(evaluation: Evaluation) -> Lines:
    trace = evaluation.trace
    level = evaluation.trace_level.name
    if trace is None:
        yield "trace", f"none ({level})"
        return
    dropped = f", {trace.dropped} more were too many" if trace.dropped else ""
    yield "trace", f"{trace.trace_id}, {level}, {trace.span_count} spans{dropped}"
    if trace.url:
        yield "", trace.url
    yield "", f"agent trace export {evaluation.id}"
    for note in trace.notes:
        yield "", note


def _group(group: Sequence[Evaluation]) -> Lines:
    for place, each in enumerate(group):
        framework = each.system.manifest.framework.name
        what = each.trace_level.name if kind_of(each).of_a_model else framework
        yield ("" if place else "group"), f"{each.id}  {what}"


@click.command(cls=Command)
@option("-o", "--output", type=FILE, default=Path("report.html"), metavar="FILE", help="Write to this file.")
@filter_options
@option(
    "--details",
    type=WHOLE_NUMBER,
    default=50,
    metavar="N",
    help="Include the times of all batches, the queries of loads and the layers of the newest N.",
)
@option("--compared", type=WHOLE_NUMBER, default=8, metavar="N", help="Compare the newest N with each other.")
@boolean("--overwrite", help="Replace the file if it exists.")
def report(output: Path, details: int, compared: int, overwrite: bool, **chosen: Any) -> None:
    """Write the evaluations as a page, in one file that any browser opens without a network.

    It has a table with filters and sorting, a view of each evaluation with its figures, pictures and the
    command that runs it again, and comparisons.
    """
    from inferometer.client.web.page import report_text

    wanted, file = ChosenEvaluations(**chosen), OutputFile(output, appendable=False)
    if not overwrite:
        file.refuse_existing()
    with closing(current_invocation().open_store()) as store:
        unread: list[str] = []
        found = wanted.find(store, OverviewReport(), lambda error: unread.append(str(error)))
        text = report_text(
            found,
            readable_spans(store, say_left_out),
            source=store.location,
            made_at=datetime.now(timezone.utc),
            details=details,
            compared=compared,
            left_out=unread,
        )
        file.write(text, overwrite=overwrite)
        say_none(found, store)
    noun = "evaluation" if len(found) == 1 else "evaluations"
    click.echo(f"wrote {output}: {len(found)} {noun}, {len(text.encode()) / 1000:,.0f} kB")


_ENDINGS = {Format.TABLE: "txt", Format.CSV: "csv", Format.JSON: "json", Format.MARKDOWN: "md"}


@click.command("all", cls=Command)
@filter_options
@option(
    "-f",
    "--format",
    "formats",
    type=click.Choice([f.value for f in Format], case_sensitive=False),
    multiple=True,
    default=[Format.CSV.value],
    help="Format of the files; repeat the option for several.",
)
@option(
    "-o", "--output", type=FILE, default=Path("evaluation-reports"), metavar="DIR", help="Folder to write."
)
@option(
    "--plot",
    "pictures",
    type=click.Choice(["html", "svg", "png"], case_sensitive=False),
    multiple=True,
    help="Also plot each report.",
)
@boolean("--overwrite", help="Replace the files of these names if the folder exists.")
@boolean("--include_profiled", help="Also show the latency of evaluations that ran under a profiler.")
def all_reports(
    formats: Sequence[str],
    output: Path,
    pictures: Sequence[str],
    overwrite: bool,
    include_profiled: bool,
    **chosen: Any,
) -> None:
    """Write every report on the evaluations into a folder.

    Each report is a file with its name. A report without rows has only its headings, and stderr gives the
    reason.
    """
    wanted, invocation = ChosenEvaluations(**chosen), current_invocation()
    folder = _Folder(output, overwrite=overwrite)
    try:
        writing = invocation.waiting.during("writing reports")
        with writing, closing(invocation.open_store()) as store:
            found: dict[tuple[type[Measurement], ...], Sequence[Evaluation]] = {}
            for declared, plot in declared_reports():
                report = declared()
                if report.takes not in found:
                    found[report.takes] = wanted.find(store, report)
                taken = found[report.takes]
                left = report.undisturbed and not include_profiled
                shown = undisturbed(taken, f"{report.name}: ") if left else taken
                endings = [Format(each.lower()) for each in formats]
                drawn = [each.lower() for each in pictures] if plot else []
                _write(report, shown, store, folder.path, endings, drawn)
            say_none([each for taken in found.values() for each in taken], store)
        for file in folder.publish():
            click.echo(file)
    finally:
        folder.close()


def _write(
    report: Report[Any],
    evaluations: Sequence[Evaluation],
    store: EvaluationStore,
    folder: Path,
    formats: Sequence[Format],
    pictures: Sequence[str],
) -> None:
    count = 0
    for each in dict.fromkeys(formats):  # each reads the spans anew, so that rows need not be kept
        path = folder / f"{report.name}.{_ENDINGS[each]}"
        shown = report.on_a_page() if each is Format.MARKDOWN else report
        count = write(shown.columns, rows_of(shown, evaluations, store), each, path)
    if isinstance(report, TraceReport):
        explain(report, evaluations, count, f"{report.name}: ")
    if pictures and count:
        rows = list(rows_of(report, evaluations, store))
        drawing = find_plot(report).draw(evaluations, rows)
        for ending in dict.fromkeys(pictures):
            picture = PictureFile(folder / f"{report.name}.{ending}")
            picture.write(report, drawing, rows, datetime.now(timezone.utc))


class _Folder:
    """A folder that is created with all of its files, or not at all."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self._shown = path
        self._target = Path(os.path.realpath(path))  # a link stays one, and "." has a folder that it is in
        if path.exists() and not path.is_dir():
            raise OutputError(f"{path}: is not a folder; name another one with --output")
        if path.exists() and not overwrite:
            raise OutputError(f"{path} exists; overwrite its reports (--overwrite), or name another --output")
        # Beside the folder, so that it can take its place; within one that is there, which may be a mount.
        beside = self._target if self._target.is_dir() else self._target.parent
        self.path = beside / f".inferometer-{uuid.uuid4().hex}.tmp"
        with explained(OutputError, f"{path}: cannot be created"):
            self.path.mkdir()

    def publish(self) -> Sequence[Path]:
        """Moves the files to their destination, and returns their paths."""
        names = sorted(file.name for file in self.path.iterdir())
        with explained(OutputError, f"{self._shown}: cannot be written"):
            if self._target.exists():
                for name in names:
                    (self.path / name).replace(self._target / name)
            else:
                self.path.rename(self._target)
        return [self._shown / name for name in names]

    def close(self) -> None:
        """Removes the files that were not moved to their destination."""
        with suppress(OSError):
            shutil.rmtree(self.path)
