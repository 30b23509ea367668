"""``agent info evaluation show``: one evaluation, for a person to read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from datetime import timezone
from typing import TypeAlias

import click

from agent.predictor import Weights
from client.command import Command, database_options
from client.evaluating.summary import summary_rows
from client.invocation import current_invocation
from client.load.summary import load_rows
from client.reports.evaluation_document import as_document, heaviest, stage_shares
from client.reports.evaluation_id import whole_id
from client.reports.load_document import load_lines
from evaluators.evaluation import Evaluation, Status
from evaluators.reports.layers import LayersReport
from evaluators.reports.trace_report import SpanSource
from evaluators.statistics import LatencySummary
from evaluators.store.base import EvaluationFilter, EvaluationStore
from manifests.errors import StoreError

_BYTES_PER_GIB = 1024**3
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_LONGEST_NAME = 40

Lines: TypeAlias = Iterator[tuple[str, str]]
"""What stands at the left, empty where it is that of the line above, and at the right."""


@click.command(cls=Command)
@click.argument("evaluation_id", metavar="ID")
@click.option(
    "-f",
    "--format",
    "format_name",
    type=click.Choice(["text", "json"], case_sensitive=False),
    default="text",
    show_default=True,
    help="For a person, or as an object.",
)
@database_options
def show(
    evaluation_id: str, format_name: str, database_address: str | None, database_name: str | None
) -> None:
    """Show one evaluation: what ran, on what, the figures, the heaviest layers, and where its trace is.

    The beginning of the ID is enough where no other begins so.
    """
    store = current_invocation().open_store(database_address, database_name)
    try:
        evaluation = find_one(store, evaluation_id)
        group = _others(store, evaluation)
        if format_name.lower() == "json":
            shown = as_document(evaluation, timed_by(evaluation, group), group, store.spans)
            click.echo(json.dumps(shown, ensure_ascii=False, indent=2))
            return
        for line in lines_of(evaluation, group, store.spans):
            click.echo(line)
    finally:
        store.close()


def lines_of(evaluation: Evaluation, group: Sequence[Evaluation], spans: SpanSource) -> Iterator[str]:
    """Yields the lines that a person reads.

    Args:
        evaluation: What is shown.
        group: The others of its group, the shallowest trace first.
        spans: Gives its spans.
    """
    figures = _figures(evaluation, group) if evaluation.load is None else load_rows(evaluation.load)
    lines = itertools.chain(_what(evaluation), _where(evaluation), figures, _layers(evaluation, spans))
    for name, text in itertools.chain(lines, _trace(evaluation), _group(group)):
        yield f"{name:<14}{text}".rstrip()


def find_one(store: EvaluationStore, evaluation_id: str) -> Evaluation:
    """Returns the evaluation with an id, or with the only one that begins so.

    Raises:
        StoreError: There is none, or there are several; or it is the id of a group, whose evaluations are
            named.
    """
    evaluation_id = whole_id(store, evaluation_id)
    wanted = EvaluationFilter(evaluation_id=evaluation_id, include_interrupted=True)
    found = store.find(wanted)
    if not found:
        raise StoreError(
            f"{store.location}: holds no evaluation {evaluation_id}; "
            "agent info evaluation accuracy lists them"
        )
    if found[0].id != evaluation_id:
        members = ", ".join(f"{each.id} ({each.options.trace_level.name})" for each in found)
        raise StoreError(f"{evaluation_id} is a group of evaluations; name one of {members}")
    return found[0]


def _others(store: EvaluationStore, evaluation: Evaluation) -> Sequence[Evaluation]:
    """The other evaluations of the group, the shallowest trace first."""
    if evaluation.group_id is None:
        return ()
    members = store.find(EvaluationFilter(evaluation_id=evaluation.group_id, include_interrupted=True))
    others = [each for each in members if each.id != evaluation.id]
    return sorted(others, key=lambda each: each.options.trace_level)


def _what(evaluation: Evaluation) -> Lines:
    system, options = evaluation.system, evaluation.options
    manifest, dataset = system.manifest, evaluation.dataset
    weights = f"random, seed {system.seed}" if system.weights is Weights.RANDOM else system.weights.value
    yield "evaluation", f"{evaluation.id}  {evaluation.status.value}"
    begun = evaluation.created_at.astimezone(timezone.utc).isoformat(sep=" ", timespec="seconds")
    yield "begun", f"{begun}, measured for {evaluation.elapsed_ns / _NS_PER_S:.3f} s"
    yield "model", f"{manifest.name} {manifest.version}, weights: {weights}"
    for part, checksum in system.checksums.items():
        yield "", f"{part} {checksum}"
    yield "framework", f"{manifest.framework.name} {system.framework_version}"
    if evaluation.load is not None:
        yield from load_lines(evaluation, evaluation.load)
        return
    yield "dataset", f"{dataset.name}, {int(evaluation.batches.sizes.sum())} inputs predicted"
    warm_up = f"{options.warmup_num_file_parts} parts to warm up"
    yield "batches", f"{len(evaluation.batches.sizes)} of up to {options.batch_size} inputs, {warm_up}"


def _where(evaluation: Evaluation) -> Lines:
    system, machine = evaluation.system, evaluation.system.environment
    threads = f", {system.threads} threads" if system.threads and not system.device.is_gpu else ""
    yield "device", f"{system.device}{threads}; {system.agent}"
    if not machine.is_known:
        told = ", ".join(f"{name} {version}".rstrip() for name, version in machine.frameworks.items())
        yield "host", f"not known; the server runs the model in {told}" if told else "not known"
        return
    memory = (
        f"{machine.memory_bytes / _BYTES_PER_GIB:.0f} GiB" if machine.memory_bytes else "memory not known"
    )
    yield "host", f"{machine.hostname}: {machine.cpu_model}, {machine.usable_cores} cores, {memory}"
    programs = f"Python {machine.python_version}, inferscope {machine.inferscope_version}"
    yield "", f"{machine.operating_system}, {programs}"
    for gpu in machine.gpus:
        yield "", f"{gpu.name}, {gpu.memory_bytes / _BYTES_PER_GIB:.0f} GiB"


def timed_by(evaluation: Evaluation, group: Sequence[Evaluation]) -> Evaluation:
    """The evaluation that tells how long the model takes: of a group, one that no profiler disturbed.

    A complete one comes first. Where all ran under a profiler, it is the evaluation itself.
    """
    undisturbed = [each for each in (evaluation, *group) if not each.profiled]
    if evaluation in undisturbed or not undisturbed:
        return evaluation
    return min(undisturbed, key=lambda each: each.status is not Status.COMPLETE)


def _figures(evaluation: Evaluation, group: Sequence[Evaluation]) -> Lines:
    """The figures; those of time from an evaluation that no profiler disturbed, if there is one."""
    timed = timed_by(evaluation, group)
    for name, text in summary_rows(timed):
        if name in {"latency", "throughput"} or not name:
            yield name, text
    summary = LatencySummary.of(timed)
    if summary.trimmed_mean_ns is not None:
        yield "", f"trimmed mean {summary.trimmed_mean_ns / _NS_PER_MS:.3f} ms per batch"
    yield "stages", _stages(timed)
    if timed is not evaluation:
        yield "", f"of {timed.id} ({timed.options.trace_level.name}): no profiler slowed it down"
    for name, text in summary_rows(evaluation):
        if name in {"accuracy", "top-1", "top-5", "failures"}:
            yield name, text


def _stages(evaluation: Evaluation) -> str:
    """Where the time of the inputs went."""
    shares = stage_shares(evaluation)
    if not shares:
        return "not known"
    parts = ", ".join(f"{name} {share:.1f} %" for name, share in shares.items())
    return f"{parts} of the time spent on inputs, by all threads together"


def _layers(evaluation: Evaluation, spans: SpanSource) -> Lines:
    """The heaviest layers, where they were traced."""
    rows = list(LayersReport().rows_of([evaluation], spans))
    for place, row in enumerate(heaviest(rows)):
        name = str(row["layer_name"])
        name = name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"
        time_ms = float(row["duration_us_p50"] or 0) / 1000
        share = float(row["share_percent"] or 0)
        shapes = str(row["input_shapes"]).partition(" ")[0]
        left = f"{share:5.1f} %  {time_ms:9.3f} ms  {name:<{_LONGEST_NAME}}"
        yield ("" if place else "heaviest"), f"{left}  {row['layer_type']} {shapes}"
    if rows:
        yield "", f"of {len(rows)} layers; share of all, and median under the profiler"


def _trace(evaluation: Evaluation) -> Lines:
    trace = evaluation.trace
    level = evaluation.options.trace_level.name
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
        yield ("" if place else "group"), f"{each.id}  {each.options.trace_level.name}"
