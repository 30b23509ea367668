"""The facts about an evaluation: how it was measured, on what, and with what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from inferometer.agent.inference.predictor import Weights
from inferometer.client.reports.evaluation_document import system_document
from inferometer.client.reports.show import precision_text
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.registry import kind_of

_GIB = 1024**3
_NS_PER_S = 1_000_000_000


def facts_of(
    evaluation: Evaluation, timed: Evaluation, told: Sequence[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """Yields sections, each with a heading and its facts: a name and a text.

    Args:
        evaluation: The evaluation.
        timed: The evaluation that the latency is taken from; see ``timed_by``.
        told: Further facts about the measurement.
    """
    system, known, dataset = evaluation.system, system_document(evaluation), evaluation.dataset
    measured = list(_measured(evaluation, timed))
    known_names = {name for name, _ in measured} | {"dataset", "INVALID"}
    yield _section("Measurement", [*measured, *((n, t) for n, t in told if n not in known_names)])
    conditions = evaluation.conditions
    if conditions is not None:
        reasons = [("reason", reason) for reason in conditions.reasons]
        yield _section(
            "Conditions", [("verdict", conditions.stability.value), *reasons, ("note", conditions.note)]
        )
    yield _section(
        "Model",
        [
            ("model", f"{system.manifest.name} {system.manifest.version}"),
            (
                "weights",
                f"random, seed {system.seed}" if system.weights is Weights.RANDOM else system.weights.value,
            ),
            *((f"checksum of {part}", checksum) for part, checksum in system.checksums.items()),
            ("dataset", " ".join(filter(None, (dataset.name, dataset.version)))),
            ("inputs of the dataset", dataset.size),
            ("samples of the dataset", dataset.chosen_samples),
            ("checksum of the dataset", dataset.checksum),
        ],
    )
    machine = system.environment
    yield _section(
        "System",
        [
            ("device", known["device"]),
            ("threads", system.threads),
            ("precision", precision_text(system)),
            ("preprocessing threads", system.preprocess_threads),
            ("agent", system.agent),
            ("host", machine.hostname),
            ("CPU", known["cpu_model"]),
            ("usable cores", known["usable_cores"]),
            ("memory", known["memory_bytes"] and f"{known['memory_bytes'] / _GIB:.0f} GiB"),
            *(("GPU", f"{gpu.name}, {gpu.memory_bytes / _GIB:.0f} GiB") for gpu in machine.gpus),
            ("GPU driver", machine.gpu_driver),
            ("system", known["operating_system"]),
            ("kernel", known["kernel"]),
            ("frequency governor", known["governor"]),
        ],
    )
    yield _section(
        "Software",
        [
            ("framework", f"{system.manifest.framework.name} {system.framework_version}"),
            ("Python", known["python_version"]),
            ("inferometer", known["inferometer_version"]),
            ("build", known["build"]),
            *known["libraries"].items(),
            *known["settings"].items(),
            *known["variables"].items(),
        ],
    )
    if (trace := evaluation.trace) is not None:
        yield _section(
            "Trace",
            [
                ("trace", trace.trace_id),
                ("level", evaluation.trace_level.name),
                ("spans", trace.span_count),
                ("dropped", trace.dropped or None),
                ("url", trace.url),
                *(("note", note) for note in trace.notes),
            ],
        )


def _section(heading: str, rows: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {
        "heading": heading,
        "rows": [[name, str(value)] for name, value in rows if value not in (None, "")],
    }


def _measured(evaluation: Evaluation, timed: Evaluation) -> Iterator[tuple[str, Any]]:
    """Yields how it was measured: the options, and where the time went."""
    measurement = evaluation.measurement
    kind = kind_of(evaluation)
    yield "kind", kind.title
    yield "measured for", f"{measurement.elapsed_ns / _NS_PER_S:.3f} s"
    yield from kind.facts(evaluation, timed)
    options = getattr(measurement, "options", None)
    given = dict(options) if isinstance(options, Mapping) else _fields(options)
    for name, value in (given | given.pop("further", {})).items():
        yield "loss function" if name == "loss" else name.replace("_", " "), _option_text(value)


def _fields(options: Any) -> dict[str, Any]:
    return {} if options is None else {each.name: getattr(options, each.name) for each in fields(options)}


def _option_text(value: Any) -> str | None:
    """Returns an option as a text; None for one that was left out."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
    return str(getattr(value, "value", value))
