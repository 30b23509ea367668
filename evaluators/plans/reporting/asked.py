"""The options of a report on a plan, the same for the command and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inferometer.evaluators.plans.reporting.advice import Failed, gpu_advice
from inferometer.evaluators.plans.reporting.cases import Case
from inferometer.evaluators.plans.reporting.objectives import Objective, best, chosen, none_fulfils
from inferometer.evaluators.plans.reporting.scaling import Scaling, scaling
from inferometer.evaluators.plans.reporting.tables import PlanTable, table
from inferometer.manifests.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of a report.

    Attributes:
        rows: The dimensions of its rows; empty for those that tell cells apart.
        columns: The dimensions of its columns.
        value: Its figures.
        where: Conditions that each cell must meet.
        failed: Whether to show the incomplete runs instead.
        minimize: The figures to minimize; the report then shows the best cells.
        maximize: The figures to maximize; the report then shows the best cells.
        scaling: The kind of scaling to show instead.
        over: The dimension that counts the workers; None for the only number that varies.
        gpu_advice: Whether to show whether a GPU is worth its price.
        cores_per_gpu: How many cores a GPU counts for; None if it is unknown.
    """

    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    value: Sequence[str] = ()
    where: Sequence[str] = ()
    failed: bool = False
    minimize: Sequence[str] = ()
    maximize: Sequence[str] = ()
    scaling: Scaling | None = None
    over: str | None = None
    gpu_advice: bool = False
    cores_per_gpu: float | None = None

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The figures to minimize, followed by those to maximize."""
        lowest = [Objective(name, highest=False) for name in self.minimize]
        return (*lowest, *(Objective(name, highest=True) for name in self.maximize))

    def check(self) -> None:
        """Raises an error if options exclude each other.

        Raises:
            ConfigurationError: Two options exclude each other.
        """
        kinds = [name for name, is_asked in self._kinds().items() if is_asked]
        if len(kinds) > 1:
            raise ConfigurationError(f"{kinds[0]} and {kinds[1]} are two reports; ask for one at a time")
        given = [f"--{name}" for name in ("rows", "columns") if getattr(self, name)]
        if kinds and given:
            raise ConfigurationError(f"{kinds[0]} has its own rows and columns; leave out {given[0]}")
        if self.over is not None and self.scaling is None and not self.gpu_advice:
            raise ConfigurationError("--over belongs to --scaling and --gpu_advice; add one of them")
        if self.cores_per_gpu is not None and not self.gpu_advice:
            raise ConfigurationError("--cores_per_gpu belongs to --gpu_advice; add it")
        if self.failed and (self.value or self.where):
            left_out = "--value" if self.value else "--where"
            raise ConfigurationError(f"--failed shows runs without figures; leave out {left_out}")

    def _kinds(self) -> Mapping[str, bool]:
        """Returns the kinds of reports other than the table, and whether each one is requested."""
        objective = "--minimize" if self.minimize else "--maximize"
        return {
            "--failed": self.failed,
            objective: bool(self.objectives),
            "--scaling": self.scaling is not None,
            "--gpu_advice": self.gpu_advice,
        }


def reported(cases: Sequence[Case], asked: Asked, failed: Sequence[Failed] = ()) -> PlanTable:
    """Returns the requested report.

    Args:
        cases: All cases of the plan, at least one.
        asked: The options. Incomplete runs are not shown here; see ``failures``.
        failed: The cells on a GPU that failed.

    Raises:
        ConfigurationError: A name or a condition is wrong, or no case meets the conditions.
    """
    if asked.objectives:
        return best(cases, asked.objectives, asked.where, asked.value)
    fitting = chosen(cases, asked.where)
    if not fitting:
        raise none_fulfils(cases, asked.where)
    if asked.scaling is not None:
        return scaling(fitting, asked.scaling, asked.over, asked.value)
    if asked.gpu_advice:
        return gpu_advice(fitting, asked.value, asked.over, asked.cores_per_gpu, failed)
    return table(fitting, asked.rows, asked.columns, asked.value)
