"""``agent info evaluation show``: one evaluation, for a person to read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timezone
from typing import TypeAlias

import click

from inferometer.agent.inference.given_models import INFERRED
from inferometer.agent.inference.predictor import Weights
from inferometer.agent.inference.results import SystemDescription
from inferometer.client.cli.command import Command, database_options, evaluations_argument, format_option
from inferometer.client.cli.invocation import current_invocation
from inferometer.client.cli.output import echo, name_width
from inferometer.client.evaluating.ingestion_summary import ingestion_rows
from inferometer.client.evaluating.load_summary import load_rows
from inferometer.client.evaluating.operator_summary import operator_lines
from inferometer.client.evaluating.summary import accuracy_rows, conditions_rows, summary_rows
from inferometer.client.evaluating.training_summary import training_rows
from inferometer.client.reports.evaluation_document import as_document, heaviest, stage_shares
from inferometer.client.reports.evaluation_filter import readable_spans, say_left_out, whole_id
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation, M, Status, measures, of_kind
from inferometer.evaluators.measurements.batches import BatchMeasurement, LatencySummary
from inferometer.evaluators.measurements.ingestion import IngestionMeasurement
from inferometer.evaluators.measurements.load import LoadMeasurement, LoadOptions
from inferometer.evaluators.measurements.operators import OperatorMeasurement
from inferometer.evaluators.measurements.rate_search import RateSearchMeasurement
from inferometer.evaluators.measurements.training import TrainingMeasurement
from inferometer.evaluators.reports.layers import LayersReport
from inferometer.evaluators.reports.trace_report import SpanSource
from inferometer.evaluators.store.evaluation_store import EvaluationFilter, EvaluationStore
from inferometer.manifests.errors import StoreError, UnknownEvaluationError, printable

_BYTES_PER_GIB = 1024**3
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_LONGEST_NAME = 40
_INDENT = 14

Lines: TypeAlias = Iterator[tuple[str, str]]
"""The left column, empty if it is that of the line above, and the right column."""


@click.command(cls=Command)
@evaluations_argument("evaluation_id", metavar="[ID]", required=False)
@format_option("text", "json", help="Text, or one JSON object.")
@database_options
def show(evaluation_id: str | None, format_name: str) -> None:
    """Show one evaluation: what ran, on what, the figures, the heaviest layers, and where its trace is.

    A unique prefix of the ID is enough. Without one, it is the newest.
    """
    with closing(current_invocation().open_store()) as store:
        evaluation = newest(store) if evaluation_id is None else find_one(store, evaluation_id)
        group, spans = others_of(store, evaluation), readable_spans(store)
        if format_name.lower() == "json":
            shown = as_document(evaluation, timed_by(evaluation, group), group, spans)
            click.echo(json.dumps(shown, ensure_ascii=False, indent=2))
            return
        for line in lines_of(evaluation, group, spans):
            echo(line, indent=_INDENT)


def lines_of(evaluation: Evaluation, group: Sequence[Evaluation], spans: SpanSource) -> Sequence[str]:
    """Returns the lines that a person reads.

    Args:
        evaluation: What is shown.
        group: The others of its group, the shallowest trace first.
        spans: Gives its spans.
    """
    figures: Iterable[tuple[str, str]] = load_rows(evaluation)
    if measures(evaluation, TrainingMeasurement):
        figures = training_rows(evaluation)
    elif measures(evaluation, IngestionMeasurement):
        figures = ingestion_rows(evaluation)
    elif measures(evaluation, OperatorMeasurement):
        figures = operator_lines(evaluation)
    elif measures(evaluation, BatchMeasurement):
        figures = _figures(evaluation, of_kind(group, BatchMeasurement))
    lines = itertools.chain(_what(evaluation), _where(evaluation), figures, conditions_rows(evaluation))
    rest = itertools.chain(_layers(evaluation, spans), _trace(evaluation), _group(group))
    rows = [*lines, *rest]
    width = name_width(rows, _INDENT)
    return [printable(f"{name:<{width}}{text}".rstrip()) for name, text in rows]


def newest(store: EvaluationStore) -> Evaluation:
    """Returns the newest evaluation that can be read; names newer ones on stderr.

    Raises:
        UnknownEvaluationError: There is none.
    """
    wanted = EvaluationFilter(limit=1, include_interrupted=True)
    for offset in range(store.count(wanted)):
        if found := store.find(replace(wanted, offset=offset), say_left_out):
            return found[0]
    raise UnknownEvaluationError(f"{store.location}: holds no evaluation yet; agent predict publishes them")


def find_one(store: EvaluationStore, evaluation_id: str) -> Evaluation:
    """Returns the evaluation with an id, or with the only one that begins so.

    Raises:
        UnknownEvaluationError: There is none, or there are several; or it is the id of a group, whose
            evaluations are named.
        StoreError: The database cannot be reached.
    """
    evaluation_id = whole_id(store, evaluation_id)
    wanted = EvaluationFilter(evaluation_id=evaluation_id, include_interrupted=True)
    found = store.find(wanted)
    if not found:
        raise UnknownEvaluationError(
            f"{store.location}: holds no evaluation {evaluation_id}; agent info evaluations lists them"
        )
    if found[0].id != evaluation_id:
        members = ", ".join(f"{each.id} ({each.trace_level.name})" for each in found)
        raise UnknownEvaluationError(f"{evaluation_id} is a group of evaluations; name one of {members}")
    return found[0]


def others_of(
    store: EvaluationStore,
    evaluation: Evaluation,
    on_unreadable: Callable[[StoreError], None] = say_left_out,
) -> Sequence[Evaluation]:
    """Returns the other evaluations of the group that can be read, the shallowest trace first."""
    if evaluation.group_id is None:
        return ()
    wanted = EvaluationFilter(evaluation_id=evaluation.group_id, include_interrupted=True)
    members = store.find(wanted, on_unreadable)
    others = [each for each in members if each.id != evaluation.id]
    return sorted(others, key=lambda each: each.trace_level)


def _what(evaluation: Evaluation) -> Lines:
    system = evaluation.system
    manifest, dataset = system.manifest, evaluation.dataset
    weights = f"random, seed {system.seed}" if system.weights is Weights.RANDOM else system.weights.value
    yield "evaluation", f"{evaluation.id}  {evaluation.status.value}"
    begun = evaluation.created_at.astimezone(timezone.utc).isoformat(sep=" ", timespec="seconds")
    yield "begun", f"{begun}, measured for {evaluation.measurement.elapsed_ns / _NS_PER_S:.3f} s"
    if not measures(evaluation, OperatorMeasurement):
        yield "model", f"{manifest.name} {manifest.version}, weights: {weights}"
    for part, checksum in system.checksums.items():
        yield "", f"{part} {checksum}"
    if inferred := manifest.attributes.get(INFERRED):
        yield "", f"manifest {inferred}"
    yield "framework", f"{manifest.framework.name} {system.framework_version}"
    if measures(evaluation, BatchMeasurement):
        measurement, options = evaluation.measurement, evaluation.measurement.options
        yield "dataset", f"{dataset.name}, {measurement.predicted_inputs} inputs predicted"
        yield from _samples(dataset)
        warm_up = f"{options.warmup_num_file_parts} parts to warm up"
        yield "batches", f"{len(measurement.times.sizes)} of up to {options.batch_size} inputs, {warm_up}"
    elif isinstance(evaluation.measurement, LoadMeasurement | RateSearchMeasurement):
        yield from _load_lines(evaluation, evaluation.measurement)


def _samples(dataset: DatasetIdentity) -> Lines:
    if dataset.chosen_samples is not None:
        yield "samples", dataset.chosen_samples


def _load_lines(evaluation: Evaluation, measurement: LoadMeasurement | RateSearchMeasurement) -> Lines:
    """Yields the options of the load."""
    options, dataset = measurement.options, evaluation.dataset
    prepared = "preprocessed under load" if options.include_preprocess else "preprocessed before"
    yield "inputs", f"{dataset.name}, {dataset.size} of them, {prepared}"
    yield from _samples(dataset)
    if isinstance(measurement, RateSearchMeasurement):
        bound = f"p{options.percentile:g} <= {options.latency_bound_ms:g} ms"
        yield "load", f"search for the highest rate with {bound}, from {options.rate_qps:g} queries/s"
        yield "", f"{options.arrival}, seed {options.seed}, {_known('budget', options.time_budget_s, 's')}"
        probes = f"probes of {options.min_duration_s:g} s and {options.min_queries} queries at the least"
        yield "", f"{probes}; each schedule: agent info evaluation max-qps --probes --id={evaluation.id}"
    else:
        run = measurement.run
        rate = f" at {run.rate_qps:g} queries/s" if run.rate_qps else ""
        seed = f", seed {run.seed}" if run.seed is not None else ""
        yield "load", f"{run.source}{rate}{seed}"
        if run.checksum:
            yield "", f"schedule {run.checksum}"
    yield "", ", ".join(_conditions(options, isinstance(measurement, RateSearchMeasurement)))


def _conditions(options: LoadOptions, search: bool) -> Iterator[str]:
    yield f"timeout {options.timeout_ms:g} ms"
    if not search:
        yield _known("bound", options.latency_bound_ms, "ms") or "no bound"
    yield f"batches of up to {options.max_batch_size}"
    if options.max_queue_delay_ms:
        yield f"which wait {options.max_queue_delay_ms:g} ms"
    yield f"{options.warm_up_queries} queries to warm up"


def _known(name: str, value: float | None, unit: str) -> str:
    return "" if value is None else f"{name} {value:g} {unit}"


def _where(evaluation: Evaluation) -> Lines:
    system, machine = evaluation.system, evaluation.system.environment
    threads = f", {system.threads} threads" if system.threads and not system.device.is_gpu else ""
    yield "device", f"{system.device}{threads}; {system.agent}"
    if precision := precision_text(system):
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
        yield "build", machine.build
    for heading, texts in (("libraries", machine.libraries), ("settings", machine.settings)):
        if texts:
            yield heading, ", ".join(map(" ".join, texts.items()))


def precision_text(system: SystemDescription) -> str:
    """The precision of a model in code, and cuDNN's setting where one was asked for; empty for neither."""
    found = [] if system.precision is None else [system.precision.value]
    if system.cudnn_benchmark is not None:
        found.append(f"cudnn_benchmark={str(system.cudnn_benchmark).lower()}")
    return ", ".join(found)


def timed_by(evaluation: Evaluation[M], group: Sequence[Evaluation[M]]) -> Evaluation[M]:
    """The evaluation that tells how long the model takes: of a group, one that no profiler disturbed.

    A complete one comes first. Where all ran under a profiler, it is the evaluation itself.
    """
    undisturbed = [each for each in (evaluation, *group) if not each.profiled]
    if evaluation in undisturbed or not undisturbed:
        return evaluation
    return min(undisturbed, key=lambda each: each.status is not Status.COMPLETE)


def _figures(
    evaluation: Evaluation[BatchMeasurement], group: Sequence[Evaluation[BatchMeasurement]]
) -> Lines:
    """The figures; those of time from an evaluation that no profiler disturbed, if there is one."""
    timed = timed_by(evaluation, group)
    trimmed_mean_ns = LatencySummary.of(timed.measurement).trimmed_mean_ns
    for name, text in summary_rows(timed):
        if name == "throughput" and trimmed_mean_ns is not None:
            yield "", f"trimmed mean {trimmed_mean_ns / _NS_PER_MS:.3f} ms per batch"
        if name in {"latency", "throughput"} or not name:
            yield name, text
    shares = ", ".join(f"{name} {share:.1f} %" for name, share in stage_shares(timed).items())
    yield (
        "stages",
        f"{shares} of the time spent on inputs, by all threads together" if shares else "not known",
    )
    if timed is not evaluation:
        yield "", f"of {timed.id} ({timed.trace_level.name}): no profiler slowed it down"
    yield from accuracy_rows(evaluation)
    yield "failures", str(len(evaluation.measurement.failures))


def _layers(evaluation: Evaluation, spans: SpanSource) -> Lines:
    """The heaviest layers, where they were traced."""
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


def _trace(evaluation: Evaluation) -> Lines:
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
        of_operators = measures(each, OperatorMeasurement)
        what = each.system.manifest.framework.name if of_operators else each.trace_level.name
        yield ("" if place else "group"), f"{each.id}  {what}"
