"""The words of the command that measures the operators of an evaluation again."""

from __future__ import annotations

from collections.abc import Iterator

from inferometer.agent.hardware.device import DeviceKind
from inferometer.agent.operators.operator import Preset
from inferometer.agent.operators.table.registry import operators
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.operators.measurement import (
    Mode,
    OperatorMeasurement,
    OperatorOptions,
    OperatorRow,
)
from inferometer.evaluators.kinds.words import allocator_words

_PLAIN = OperatorOptions()


def words_again(evaluation: Evaluation[OperatorMeasurement]) -> Iterator[str]:
    """Yields the operators and the options; of several own sizes, only the operators."""
    measured, system = evaluation.measurement, evaluation.system
    rows = measured.rows
    yield from dict.fromkeys(row.operator for row in rows)
    yield f"--framework_name={system.manifest.framework.name}"
    yield from _sizes(rows)
    modes = tuple(dict.fromkeys(row.mode for row in rows))
    if modes != (Mode.FORWARD,):
        yield from (f"--mode={mode.value}" for mode in modes)
    yield from (f"--form={form}" for form in dict.fromkeys(row.form for row in rows if row.form))
    if system.device.kind is DeviceKind.GPU:
        yield "--gpu"
    elif system.threads:
        yield f"--threads={system.threads}"
    yield from allocator_words(system)
    yield from _options(measured.options)


def unrepeated_sizes(measurement: OperatorMeasurement) -> bool:
    """Returns whether there are own sizes that the command does not name."""
    return OWN in {row.preset for row in measurement.rows} and not _own_case(measurement.rows)


OWN = "own"


def _sizes(rows: tuple[OperatorRow, ...]) -> Iterator[str]:
    if row := _own_case(rows):
        given = operators()[row.operator].given
        yield from (f"--input={name}={_joined(row.shapes[name])}" for name in given)
        yield from (
            f"--param={name}={_joined(value) if isinstance(value, tuple) else str(value).lower()}"
            for name, value in row.parameters.items()
        )
        return
    known = [each.value for each in Preset]
    presets = dict.fromkeys(row.preset for row in rows if row.preset in known)
    if presets:
        yield f"--shapes={','.join(presets)}"


def _own_case(rows: tuple[OperatorRow, ...]) -> OperatorRow | None:
    """Returns the row of the only case, if its sizes are a user's own; None otherwise."""
    cases = {row.key[:3] for row in rows}
    return rows[0] if len(cases) == 1 and rows[0].preset == OWN and rows[0].operator in operators() else None


def _joined(sizes: tuple[int, ...]) -> str:
    return ",".join(map(str, sizes))


def _options(options: OperatorOptions) -> Iterator[str]:
    """Yields the options that differ from their defaults."""
    named = {
        "dtype": options.dtype,
        "cache": options.cache.value,
        "target_ci": options.target_percent or 0,
        "time_budget": options.budget_s,
        "runs": options.runs,
        "warmup": options.warmup,
        "processes": options.processes,
        "values": options.values,
        "seed": options.seed,
    }
    plain = {
        "dtype": _PLAIN.dtype,
        "cache": _PLAIN.cache.value,
        "target_ci": _PLAIN.target_percent,
        "time_budget": _PLAIN.budget_s,
        "runs": None,
        "warmup": _PLAIN.warmup,
        "processes": _PLAIN.processes,
        "values": _PLAIN.values,
        "seed": _PLAIN.seed,
    }
    for name, value in named.items():
        if value != plain[name]:
            yield f"--{name}={value:g}" if isinstance(value, float) else f"--{name}={value}"
