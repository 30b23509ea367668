"""The summary that is printed at the end of an evaluation."""

from __future__ import annotations

import click

from agent.device import DeviceKind
from agent.predictor import Weights
from agent.trace_level import TraceLevel
from evaluators.evaluation import Evaluation
from evaluators.statistics import LatencySummary

_NS_PER_MS = 1_000_000
_WITH_NETWORK = (("", "from the request to the answer of the server: the network is in it"),)
_PROFILED = (("", "under the framework's profiler, which slows the model down; --leveled measures both"),)


def print_summary(evaluation: Evaluation) -> None:
    """Prints accuracy, failures, latency and throughput on stdout."""
    rows = (*summary_rows(evaluation), *_trace_rows(evaluation), ("evaluation", evaluation.id))
    for name, value in rows:
        click.echo(f"{name:<12}{value}")


def summary_rows(evaluation: Evaluation) -> tuple[tuple[str, str], ...]:
    """The figures, each with its name; a line without one belongs to the line above."""
    latency = LatencySummary.of(evaluation)
    return (
        *_accuracy_rows(evaluation),
        ("failures", str(len(evaluation.failures))),
        ("latency", _latency(latency, evaluation.options.batch_size)),
        *(_WITH_NETWORK if evaluation.system.device.kind is DeviceKind.REMOTE else ()),
        *(_PROFILED if evaluation.profiled else ()),
        ("throughput", _throughput(latency)),
    )


def _trace_rows(evaluation: Evaluation) -> tuple[tuple[str, str], ...]:
    """What was traced, where it was more than the application's own steps, or goes to a collector."""
    trace = evaluation.trace
    if trace is None or (evaluation.options.trace_level <= TraceLevel.APPLICATION_TRACE and not trace.url):
        return ()
    dropped = f", {trace.dropped} more were too many" if trace.dropped else ""
    place = f"  {trace.url}" if trace.url else ""
    notes = tuple(("", note) for note in trace.notes)
    return (("trace", f"{trace.span_count} spans{dropped}{place}"), *notes)


def _accuracy_rows(evaluation: Evaluation) -> tuple[tuple[str, str], ...]:
    output = evaluation.system.manifest.output.type
    if output != "classification":
        return (("accuracy", f"not counted: the model's output is {output}, without classes"),)
    if evaluation.system.weights is Weights.RANDOM:
        return (("accuracy", f"not counted: the weights are random (seed {evaluation.system.seed})"),)
    accuracy = evaluation.accuracy
    if accuracy is None or accuracy.top1_share is None or accuracy.top5_share is None:
        return (("accuracy", "not known: no input with a label was predicted"),)
    return (
        ("top-1", f"{accuracy.top1_share:.4f}  ({accuracy.top1} of {accuracy.evaluated} inputs)"),
        ("top-5", f"{accuracy.top5_share:.4f}  ({accuracy.top5} of {accuracy.evaluated} inputs)"),
    )


def _latency(latency: LatencySummary, batch_size: int) -> str:
    figures = {"mean": latency.mean_ns, "p50": latency.p50_ns, "p90": latency.p90_ns, "p99": latency.p99_ns}
    known = [f"{name} {value / _NS_PER_MS:.3f}" for name, value in figures.items() if value is not None]
    if not known:
        return f"not known: no batch held {batch_size} inputs"
    return f"{'  '.join(known)}  ms per batch of {batch_size}, over {latency.measured_batches} full batches"


def _throughput(latency: LatencySummary) -> str:
    figures = {"model": latency.throughput_inputs_per_s, "end to end": latency.end_to_end_inputs_per_s}
    known = [f"{value:.1f} inputs/s ({name})" for name, value in figures.items() if value is not None]
    return "  ".join(known) or "not known"
