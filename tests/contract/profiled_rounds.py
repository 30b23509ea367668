"""Predictions of a real network under its framework's profiler, and the recorded layers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES
from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.hardware.environment import PredictorOptions, Weights
from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import select_model
from inferometer.agent.tracing.recorder import (
    PredictWindow,
    Profiler,
    SpanKind,
    SpanRecorder,
    TraceContext,
    TraceLevel,
)
from inferometer.manifests.catalog import Catalog


@dataclass(frozen=True)
class RecordedSpan:
    """A span below a prediction; times on the recorder's clock."""

    kind: SpanKind
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    batch: int

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def type(self) -> str:
        return str(self.attribute("layer_type"))

    @property
    def input_shapes(self) -> Any:
        return self.attribute("input_shapes")

    @property
    def output_shapes(self) -> Any:
        return self.attribute("output_shapes")

    def attribute(self, name: str) -> Any:
        return self.kind.attribute(name)


@dataclass(frozen=True)
class Prediction:
    """A prediction and its layers, in the order in which they were recorded."""

    window: PredictWindow
    batch_size: int
    layers: list[RecordedSpan] = field(default_factory=list)

    def check_layers(self) -> None:
        """They are numbered, follow each other, and lie inside."""
        assert [layer.attribute("layer_index") for layer in self.layers] == list(range(len(self.layers)))
        assert {layer.batch for layer in self.layers} == {self.window.batch}
        last_end_ns = self.window.start_ns
        for layer in self.layers:
            assert last_end_ns <= layer.start_ns <= layer.end_ns
            last_end_ns = layer.end_ns
        assert last_end_ns <= self.window.end_ns


@dataclass(frozen=True)
class Rounds:
    """What was recorded in all."""

    predictions: Sequence[Prediction]
    notes: Sequence[str]
    spans: Sequence[RecordedSpan]

    @property
    def share_of_layers(self) -> float:
        """The part of the time of the predictions that is in their layers."""
        whole = sum(each.window.end_ns - each.window.start_ns for each in self.predictions)
        return sum(span.end_ns - span.start_ns for each in self.predictions for span in each.layers) / whole


def open_random(model: str, framework: str) -> Predictor:
    """A predictor with random weights, which a ``with`` loads."""
    registry = Registry()
    manifest = select_model(Catalog(), registry, model, framework=framework, weights=Weights.RANDOM)
    assert manifest.model.architecture is not None
    artifacts = Artifacts().with_architecture(
        BUILTIN_ARCHITECTURES.find(manifest.model.architecture, framework)
    )
    return registry.find(framework).load()(manifest, artifacts, PredictorOptions(weights=Weights.RANDOM))


def inputs(predictor: Predictor, batch_size: int) -> dict[str, NDArray[Any]]:
    parameters = predictor.manifest.inputs[0].parameters
    drawn = np.random.default_rng(3).normal(0, 1, (batch_size, *parameters.dimensions))
    return {parameters.input_layer: drawn.astype(parameters.element_type.value)}


def profiled(
    predictor: Predictor,
    level: TraceLevel,
    rounds: Sequence[tuple[int, int]],
    profiler: Profiler | None = None,
) -> Rounds:
    """Predicts in rounds of (batch size, batches), each from ``start`` to ``collect``, and closes."""
    recorder = SpanRecorder(TraceContext.new(), level)
    profiler = profiler or predictor.profiler(level)
    assert profiler is not None
    predictions: dict[int, Prediction] = {}
    try:
        for batch_size, batches in rounds:
            given = inputs(predictor, batch_size)
            profiler.start()
            for _ in range(batches):
                start_ns = time.perf_counter_ns()
                predictor.predict(given)
                window = PredictWindow(
                    recorder.new_id(), start_ns, time.perf_counter_ns(), batch=len(predictions)
                )
                profiler.predicted(window)
                predictions[window.span_id] = Prediction(window, batch_size)
            profiler.collect(recorder)
    finally:
        profiler.close()
    spans = _spans(recorder)
    for span in spans:
        if span.kind.level is TraceLevel.FRAMEWORK_TRACE:
            predictions[span.parent_id].layers.append(span)
    return Rounds(list(predictions.values()), recorder.notes, spans)


def _spans(recorder: SpanRecorder) -> list[RecordedSpan]:
    found = []
    for chunk in recorder.chunks():
        columns = (chunk.kind, chunk.span_id, chunk.parent_id, chunk.start_ns, chunk.duration_ns, chunk.batch)
        for kind, span_id, parent, start, duration, batch in zip(*(c.tolist() for c in columns), strict=True):
            start_ns = start - recorder.epoch_offset_ns
            found.append(
                RecordedSpan(chunk.kinds[kind], span_id, parent, start_ns, start_ns + duration, batch)
            )
    return found
