"""``agent info evaluation show``: one evaluation, for a person to read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import click

from agent.predictor import Weights
from client.command import Command, database_options
from client.invocation import current_invocation
from client.summary import summary_rows
from evaluators.evaluation import Evaluation
from evaluators.reports.layers import LayersReport
from evaluators.statistics import LatencySummary
from evaluators.store.base import EvaluationFilter, EvaluationStore
from manifests.errors import StoreError

HEAVIEST = 10
_BYTES_PER_GIB = 1024**3
_NS_PER_MS = 1_000_000
_LONGEST_NAME = 40

Lines: TypeAlias = Iterator[tuple[str, str]]
"""What stands at the left, empty where it is that of the line above, and at the right."""


@click.command(cls=Command)
@click.argument("evaluation_id", metavar="ID")
@database_options
def show(evaluation_id: str, database_address: str | None, database_name: str | None) -> None:
    """Show one evaluation: what ran, on what, the figures, the heaviest layers, and where its trace is."""
    store = current_invocation().open_store(database_address, database_name)
    try:
        evaluation = find_one(store, evaluation_id)
        group = _others(store, evaluation)
        lines = itertools.chain(
            _what(evaluation), _where(evaluation), _figures(evaluation, group), _layers(evaluation, store)
        )
        for name, text in itertools.chain(lines, _trace(evaluation), _group(group)):
            click.echo(f"{name:<14}{text}".rstrip())
    finally:
        store.close()


def find_one(store: EvaluationStore, evaluation_id: str) -> Evaluation:
    """Returns the evaluation with an id.

    Raises:
        StoreError: There is none; or it is the id of a group, whose evaluations are named.
    """
    wanted = EvaluationFilter(evaluation_id=evaluation_id, include_interrupted=True)
    found = store.find(wanted)
    if not found:
        raise StoreError(
            f"{store.location}: holds no evaluation {evaluation_id}; agent info evaluation latency lists them"
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
    yield "begun", evaluation.created_at.isoformat(sep=" ", timespec="seconds")
    yield "model", f"{manifest.name} {manifest.version}, weights: {weights}"
    for part, checksum in system.checksums.items():
        yield "", f"{part} {checksum}"
    yield "framework", f"{manifest.framework.name} {system.framework_version}"
    yield "dataset", f"{dataset.name}, {int(evaluation.batches.sizes.sum())} inputs predicted"
    warm_up = f"{options.warmup_num_file_parts} parts to warm up"
    yield "batches", f"{len(evaluation.batches.sizes)} of up to {options.batch_size} inputs, {warm_up}"


def _where(evaluation: Evaluation) -> Lines:
    system, machine = evaluation.system, evaluation.system.environment
    threads = f", {system.threads} threads" if system.threads and not system.device.is_gpu else ""
    yield "device", f"{system.device}{threads}; {system.agent}"
    memory = (
        f"{machine.memory_bytes / _BYTES_PER_GIB:.0f} GiB" if machine.memory_bytes else "memory not known"
    )
    yield "host", f"{machine.hostname}: {machine.cpu_model}, {machine.usable_cores} cores, {memory}"
    for gpu in machine.gpus:
        yield "", f"{gpu.name}, {gpu.memory_bytes / _BYTES_PER_GIB:.0f} GiB"


def _figures(evaluation: Evaluation, group: Sequence[Evaluation]) -> Lines:
    """The figures; those of the model's time from an evaluation that no profiler disturbed."""
    undisturbed = next((each for each in (evaluation, *group) if not each.profiled), None)
    timed = undisturbed or evaluation
    for name, text in summary_rows(timed):
        if name in {"latency", "throughput"} or not name:
            yield name, text
    if evaluation.profiled and undisturbed:
        yield "", f"of {timed.id} ({timed.options.trace_level.name}): no profiler slowed it down"
    summary = LatencySummary.of(timed)
    if summary.trimmed_mean_ns is not None:
        yield "", f"trimmed mean {summary.trimmed_mean_ns / _NS_PER_MS:.3f} ms per batch"
    yield "stages", _stages(evaluation)
    for name, text in summary_rows(evaluation):
        if name in {"accuracy", "top-1", "top-5", "failures"}:
            yield name, text


def _stages(evaluation: Evaluation) -> str:
    """Where the time of the inputs went."""
    times = evaluation.batches
    sums = {
        name: int(getattr(times, f"{name}_ns").sum())
        for name in ("read", "preprocess", "predict", "postprocess")
    }
    whole = sum(sums.values())
    if not whole:
        return "not known"
    parts = ", ".join(f"{name} {100 * spent / whole:.1f} %" for name, spent in sums.items())
    return f"{parts} of the time spent on inputs, by all threads together"


def _layers(evaluation: Evaluation, store: EvaluationStore) -> Lines:
    """The heaviest layers, where they were traced."""
    rows = list(LayersReport().rows_of([evaluation], store.spans))
    heaviest = sorted(rows, key=lambda row: -float(row["share_percent"] or 0))[:HEAVIEST]
    for place, row in enumerate(heaviest):
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
