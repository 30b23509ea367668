"""The Python function that benchmarks single operators, and its results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import cached_property

from typing_extensions import Unpack

from inferometer.agent.hardware.environment import CPU, Device, DeviceKind
from inferometer.agent.operators.operator import NOTHING, OwnCase, ParameterValue, Preset
from inferometer.client.api import results
from inferometer.client.api.arguments import DeclaredOperatorArguments
from inferometer.client.api.invocation import library_invocation
from inferometer.client.api.results import Items, Result
from inferometer.client.api.runner import Door, Runner
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.options import COUNT, check_value
from inferometer.evaluators.kinds.operators.job import operators_job
from inferometer.evaluators.kinds.operators.measurement import MachinePeak, OperatorMeasurement
from inferometer.evaluators.kinds.operators.options import Mode, OperatorOptions
from inferometer.evaluators.kinds.operators.report import OperatorsReport, operator_lines
from inferometer.evaluators.kinds.operators.request import FORMS, OperatorRequest, known, presets_of
from inferometer.evaluators.reports.base import Row
from inferometer.manifests.errors import ConfigurationError


class OperatorArguments(DeclaredOperatorArguments, total=False):
    """Further arguments of ``benchmark_operators``, besides those of ``DeclaredOperatorArguments``.

    Attributes:
        resume: Whether to resume an interrupted run of the same benchmark.
    """

    resume: bool


class OperatorRun(Result[OperatorMeasurement]):
    """The measured operators of one framework; displayed in a notebook as a table with the roofline."""

    @property
    def framework(self) -> str:
        """The framework."""
        return self.evaluation.system.manifest.framework.name

    def _figures(self) -> Sequence[tuple[str, str]]:
        return (*operator_lines(self.evaluation), ("evaluation", self.id))


class OperatorRuns(Items[OperatorRun]):
    """The measured operators of several frameworks; displayed as one table, in a notebook with a picture."""

    _columns = OperatorsReport.columns

    def __init__(self, evaluations: Iterable[Evaluation[OperatorMeasurement]]) -> None:
        self._items = tuple(map(OperatorRun, evaluations))

    @property
    def complete(self) -> bool:
        """Whether the benchmark ran to the end; after Ctrl-C, it contains the measurements up to then."""
        return all(run.complete for run in self._items)

    @property
    def peak(self) -> MachinePeak | None:
        """The peak performance of the machine; None if unknown."""
        return next((run.evaluation.measurement.peak for run in self._items), None)

    @cached_property
    def _table(self) -> Sequence[Row]:
        return tuple(OperatorsReport().rows([run.evaluation for run in self._items]))

    def _repr_html_(self) -> str:
        pictured = [run.evaluation for run in self._items]
        return results.with_picture(super()._repr_html_(), OperatorsReport(), pictured)


def benchmark_operators(
    *operators: str,
    categories: str | Iterable[str] = (),
    everything: bool = False,
    frameworks: str | Iterable[str] = (),
    shapes: str | Iterable[str] | None = None,
    inputs: Mapping[str, Sequence[int]] = NOTHING,
    parameters: Mapping[str, ParameterValue] = NOTHING,
    modes: str | Iterable[str] = Mode.FORWARD.value,
    forms: str | Iterable[str] = (),
    dtype: str = "float32",
    gpu: bool = False,
    threads: int | None = None,
    publish: bool = True,
    **more: Unpack[OperatorArguments],
) -> OperatorRuns:
    """Measures single operators and checks their output, like ``agent op run``.

    Ctrl-C ends the run after the current operator, and the measurements up to then are returned.

    Args:
        operators: Names of operators in the table, such as ``add`` and ``conv2d``.
        categories: Groups of operators in the table, such as ``gemm``.
        everything: Whether to measure all operators in the table.
        frameworks: The frameworks; empty means all that are installed.
        shapes: ``small``, ``normal``, ``large``, ``skewed``, ``huge``, ``all``, or sizes such as
            ``1024x1024``; None means ``normal``.
        inputs: Custom input shapes; only with exactly one operator.
        parameters: Custom parameters; only with exactly one operator.
        modes: The passes to time: ``forward``, ``backward``, ``forward_backward``.
        forms: The forms to run, such as ``sym`` or ``compile``; empty means the first of each framework.
        dtype: The element type.
        gpu: Whether to run on the GPU.
        threads: CPU threads per operator; None means the default.
        publish: Whether to store evaluations in the configured database.
        more: See ``OperatorArguments``.

    Raises:
        ConfigurationError: Nothing is selected, a name is unknown, or a value is invalid.
        InferometerError: A framework is not installed, or the device is not available.
        EvaluationInterrupted: Ctrl-C before a row was measured.
        StoreError: An evaluation was not published; the message names the file that holds it.
    """
    given = {**more, "dtype": dtype}
    resume = bool(given.pop("resume", False))
    options = OperatorOptions.of(given, arguments=True)
    for name in given:
        raise TypeError(f"benchmark_operators() got an unexpected keyword argument {name!r}")
    if threads is not None:
        check_value("threads", threads, "int", COUNT)
    own = _own(operators, inputs, parameters, several=bool(_names(categories)) or everything)
    request = OperatorRequest(
        operators=() if own and shapes is None else operators,
        categories=_names(categories),
        everything=everything,
        presets=presets_of(",".join(_names(shapes or Preset.NORMAL.value))),
        own=own,
        frameworks=_names(frameworks),
        modes=tuple(map(Mode, known(_names(modes), [mode.value for mode in Mode], "mode"))),
        forms=tuple(known(_names(forms), FORMS, "form")),
        device=Device(DeviceKind.GPU) if gpu else CPU,
        threads=threads,
        options=options,
    )
    invocation = library_invocation()
    job = operators_job(request, resume=resume)
    with closing(Runner(invocation, Door(), publish=publish).run(job)) as evaluations:
        return OperatorRuns(list(evaluations))


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _own(
    operators: Sequence[str],
    inputs: Mapping[str, Sequence[int]],
    parameters: Mapping[str, ParameterValue],
    *,
    several: bool,
) -> tuple[OwnCase, ...]:
    """Returns the case defined by the caller's own shapes and parameters; empty if there are none."""
    if not inputs and not parameters:
        return ()
    if several or len(operators) != 1:
        raise ConfigurationError("inputs and parameters require exactly one operator; name only one")
    return (OwnCase(operators[0], {name: tuple(shape) for name, shape in inputs.items()}, dict(parameters)),)
