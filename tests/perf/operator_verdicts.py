"""What ``agent compare`` says of benchmarks of operators: of equal sides, and of a side that is slower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inferometer.agent.inference.registry import BUILTIN, Registry
from inferometer.evaluators.comparing.operators import ComparedRow, compare_operators
from inferometer.evaluators.kinds.operators.job import benchmark_operators
from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement
from inferometer.evaluators.kinds.operators.options import OperatorOptions
from inferometer.evaluators.kinds.operators.request import OperatorRequest
from inferometer.evaluators.verdict import Verdict
from tests.perf.ratios import Row

COMPARISONS = 20
PROCESSES = 4
OPERATORS = ("add", "exp", "sum", "softmax", "dense")
_PYTORCH = next(each for each in BUILTIN if each.name == "PyTorch")
_SLOWER = replace(_PYTORCH, operators="tests.perf.slower_operators:SlowerOperators")


def measure(threads: int) -> list[Row]:
    """Compares each benchmark with the next one, and with one that is a fifth slower, by turns."""
    found = {"equal": list[Sequence[ComparedRow]](), "slower": list[Sequence[ComparedRow]]()}
    before = _measured(Registry([_PYTORCH]), threads)
    for _ in range(COMPARISONS):
        slower = _measured(Registry([_SLOWER]), threads)
        after = _measured(Registry([_PYTORCH]), threads)
        found["equal"].append(compare_operators([before], [after]))
        found["slower"].append(compare_operators([before], [slower]))
        before = after
    return [
        _row("two equal sides: comparisons that say worse", found["equal"], "≤ 0.05"),
        _row("a fifth slower: comparisons that say worse", found["slower"], "≥ 0.95"),
    ]


def _measured(registry: Registry, threads: int) -> OperatorMeasurement:
    options = OperatorOptions(processes=PROCESSES)
    request = OperatorRequest(operators=OPERATORS, frameworks=("PyTorch",), threads=threads, options=options)
    [evaluation] = benchmark_operators(request, registry, with_peak=False)
    return evaluation.measurement


def _row(name: str, found: Sequence[Sequence[ComparedRow]], aim: str) -> Row:
    verdicts = [[each.ratio.verdict for each in rows if each.ratio] for rows in found]
    share = sum(Verdict.WORSE in each for each in verdicts) / len(verdicts)
    values = sorted(each.ratio.value for rows in found for each in rows if each.ratio)
    worse = sum(each.count(Verdict.WORSE) for each in verdicts)
    detail = f"{worse} of {len(values)} rows; ratios {values[0]:.3f} – {values[-1]:.3f}"
    return Row(name, [share], aim, detail)
