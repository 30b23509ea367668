"""Reports on real traced runs equal what plain Python computes from the stored spans."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from inferometer.agent.tracing.recorder import COLUMNS
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_store
from tests.cli.conftest import Agent, FilledOnce

BATCH_SIZE = 64
INPUTS = 450
FULL = INPUTS // BATCH_SIZE
"""Full batches; one of two inputs comes after them."""


@dataclass(frozen=True)
class Kept:
    """A span as the store has it, by itself."""

    name: str
    level: str
    attributes: dict[str, Any]
    span_id: int
    parent_id: int
    start_ns: int
    duration_ns: int
    batch: int
    thread: int


@dataclass(frozen=True)
class Traced:
    """A traced evaluation: its spans, and the predict times of its full batches."""

    id: str
    spans: list[Kept]
    predict_ns: list[int]

    def layers(self) -> dict[int, list[Kept]]:
        """The layers of the full batches, by their index."""
        found = defaultdict(list)
        for span in self.spans:
            if span.level == "FRAMEWORK_TRACE" and 0 <= span.batch < FULL:
                found[span.attributes["inferometer.layer_index"]].append(span)
        return dict(found)


def kept_spans(store: Any, evaluation_id: str) -> Iterator[Kept]:
    for chunk in store.spans(evaluation_id):
        for kind, *values in zip(*(getattr(chunk, name).tolist() for name in COLUMNS), strict=True):
            of = chunk.kinds[kind]
            yield Kept(of.name, of.level.name, dict(of.attributes), *values)


@pytest.fixture(params=["PyTorch", "MXNet", "ONNXRuntime"])
def traced(request: pytest.FixtureRequest, agent: Agent, filled_once: FilledOnce, tmp_path: Path) -> Traced:
    evaluate = (
        *("predict", "dataset", "--num_file_parts=-1", f"--framework_name={request.param}"),
        *(f"--batch_size={BATCH_SIZE}", "--trace_level=ML_LIBRARY_TRACE"),
    )
    filled_once(lambda: agent(*evaluate), request.param)
    store = open_store(None, "inferometer", tmp_path / "data")
    try:
        [evaluation] = store.find(EvaluationFilter())
        assert isinstance(evaluation.measurement, BatchMeasurement)
        batches = evaluation.measurement.times
        assert batches.sizes.tolist() == [BATCH_SIZE] * FULL + [INPUTS % BATCH_SIZE]
        return Traced(
            evaluation.id, list(kept_spans(store, evaluation.id)), batches.predict_ns.tolist()[:FULL]
        )
    finally:
        store.close()


def rows(agent: Agent, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(agent("info", "evaluation", *arguments, "-f", "json").stdout)
    return found


def trimmed_mean(values: list[int]) -> float:
    """The mean without the lowest and the highest fifth, rounded down; without the highest in any case."""
    ordered, dropped = sorted(values), len(values) // 5
    assert len(ordered) > 4
    return statistics.fmean(ordered[dropped : len(ordered) - dropped])


def percentile(values: list[int], percent: int) -> float:
    ordered = sorted(values)
    below, share = divmod((len(ordered) - 1) * percent, 100)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + share / 100 * (ordered[above] - ordered[below])


def test_what_ran_below_a_span_one_after_the_other_took_no_longer_than_it(traced: Traced) -> None:
    by_id = {span.span_id: span for span in traced.spans}
    below = defaultdict(list)
    for span in traced.spans:
        if span.parent_id:
            below[span.parent_id, span.thread].append(span)

    assert len(by_id) == len(traced.spans)
    assert {by_id[parent].name for parent, _ in below} >= {"evaluation", "measure", "predict_step", "predict"}
    for (parent, _), children in below.items():
        above = by_id[parent]
        ordered = sorted(children, key=lambda span: (span.start_ns, span.duration_ns))
        for span, following in itertools.pairwise(ordered):
            assert span.start_ns + span.duration_ns <= following.start_ns, (span, following)
        assert ordered[0].start_ns >= above.start_ns, (above, ordered[0])
        assert sum(span.duration_ns for span in children) <= above.duration_ns, above


def test_spans_are_as_many_as_what_they_stand_for(traced: Traced, agent: Agent) -> None:
    counts = Counter(span.name for span in traced.spans if span.batch >= 0 or span.name == "read")
    layers = traced.layers()
    warm_up = counts["read"] - INPUTS

    assert warm_up > 0
    steps = FULL + 1 + math.ceil(warm_up / BATCH_SIZE)
    assert (counts["predict_step"], counts["predict"]) == (steps, steps)
    assert layers
    assert sorted(layers) == list(range(len(layers)))
    for spans in layers.values():
        assert sorted(span.batch for span in spans) == list(range(FULL))
    predicts = {span.span_id: span for span in traced.spans if span.name == "predict"}
    assert all(predicts[span.parent_id].batch == span.batch for spans in layers.values() for span in spans)

    found = rows(agent, "layers")
    assert sum(row["occurrences"] for row in found) == FULL * len(layers) == FULL * len(found)
    assert sum(row["occurrences"] for row in rows(agent, "layer_tree")) == FULL * len(layers)
    raw = rows(agent, "layers", "--raw")
    assert Counter(row["batch"] for row in raw if row["batch"] < FULL) == dict.fromkeys(
        range(FULL), len(layers)
    )
    assert {row["inputs"] for row in raw if row["batch"] == FULL} == {INPUTS % BATCH_SIZE}
    assert len(rows(agent, "eventflow")) == len(traced.spans)


def test_layers_have_the_figures_of_their_spans(traced: Traced, agent: Agent) -> None:
    layers = traced.layers()
    whole_ns = sum(span.duration_ns for spans in layers.values() for span in spans)

    found = rows(agent, "layers", "--id", traced.id)

    assert [row["layer_index"] for row in found] == sorted(layers)
    assert sum(row["share_percent"] for row in found) == pytest.approx(100)
    for row in found:
        spans = layers[row["layer_index"]]
        times = [span.duration_ns for span in spans]
        assert {span.name for span in spans} == {row["layer_name"]}
        assert {span.attributes["inferometer.layer_type"] for span in spans} == {row["layer_type"]}
        shapes = spans[0].attributes.get("inferometer.input_shapes", ())
        assert row["input_shapes"] == " ".join(shapes)
        memory = [span.attributes.get("inferometer.allocated_bytes") for span in spans]
        assert row["allocated_bytes"] == max((size for size in memory if size is not None), default=None)
        assert row["total_us"] == pytest.approx(sum(times) / 1000)
        assert row["share_percent"] == pytest.approx(100 * sum(times) / whole_ns)
        assert row["duration_us_trimmed_mean"] == pytest.approx(trimmed_mean(times) / 1000)
        assert row["duration_us_p50"] == carried(times, 50, 1000)
        assert row["duration_us_p99"] == carried(times, 99, 1000)


def carried(times_ns: list[int], percent: int, scale: float) -> Any:
    """A percentile, where at least five times lie beyond it."""
    if len(times_ns) * (100 - percent) < 500:
        return None
    return pytest.approx(percentile(times_ns, percent) / scale)


def test_types_have_the_figures_of_their_layers(traced: Traced, agent: Agent) -> None:
    of_type = defaultdict(list)
    for spans in traced.layers().values():
        of_type[spans[0].attributes["inferometer.layer_type"]].append(spans)
    totals = {name: sum(span.duration_ns for spans in of for span in spans) for name, of in of_type.items()}

    found = rows(agent, "layer_tree")

    assert [row["total_us"] for row in found] == sorted((ns / 1000 for ns in totals.values()), reverse=True)
    assert {row["layer_type"] for row in found} == set(of_type)
    assert sum(row["share_percent"] for row in found) == pytest.approx(100)
    for row in found:
        layers = of_type[row["layer_type"]]
        assert (row["layers"], row["occurrences"]) == (len(layers), FULL * len(layers))
        assert row["share_percent"] == pytest.approx(100 * totals[row["layer_type"]] / sum(totals.values()))
        times = [span.duration_ns for spans in layers for span in spans]
        assert row["duration_us_trimmed_mean"] == pytest.approx(trimmed_mean(times) / 1000)


def test_the_predict_spans_are_the_times_that_latency_is_made_of(traced: Traced, agent: Agent) -> None:
    measured = {span.span_id for span in traced.spans if span.name == "measure"}
    steps = {span.span_id for span in traced.spans if span.parent_id in measured}
    predict_ns = {
        span.batch: span.duration_ns
        for span in traced.spans
        if span.name == "predict" and span.parent_id in steps
    }
    full = [predict_ns[batch] for batch in range(FULL)]
    assert full == traced.predict_ns

    [row] = rows(agent, "latency", "--include_profiled")

    assert row["measured_batches"] == FULL
    assert row["latency_ms_mean"] == pytest.approx(statistics.fmean(full) / 1e6)
    assert row["latency_ms_trimmed_mean"] == pytest.approx(trimmed_mean(full) / 1e6)
    for percent in (50, 90, 99):
        assert row[f"latency_ms_p{percent}"] == carried(full, percent, 1e6)
    assert row["throughput_inputs_per_s"] == pytest.approx(BATCH_SIZE * FULL / (sum(full) / 1e9))
    durations = rows(agent, "duration")
    assert [row["predict_us"] for row in durations[:FULL]] == [ns / 1000 for ns in full]
