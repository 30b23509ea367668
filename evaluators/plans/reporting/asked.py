"""The report on a plan that somebody asks for: the same for the command and for the page."""

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
    """What a report is to show.

    Attributes:
        rows: The dimensions of its rows; empty for those that tell cells apart.
        columns: Those of its columns.
        value: Its figures.
        where: Conditions that each cell fulfils.
        failed: Whether the runs that are not complete are shown instead.
        minimize: The figures that are to be low; the best cells are shown instead.
        maximize: Those that are to be high.
        scaling: The kind of scaling that is shown instead.
        over: What counts those that work; None for the only number that varies.
        gpu_advice: Whether it is shown whether a GPU is worth asking for.
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
        """The figures that are to be low, then those that are to be high."""
        lowest = [Objective(name, highest=False) for name in self.minimize]
        return (*lowest, *(Objective(name, highest=True) for name in self.maximize))

    def check(self) -> None:
        """Raises where options exclude each other.

        Raises:
            ConfigurationError: They do.
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
        """The kinds of reports beside the table, and whether each is asked for."""
        objective = "--minimize" if self.minimize else "--maximize"
        return {
            "--failed": self.failed,
            objective: bool(self.objectives),
            "--scaling": self.scaling is not None,
            "--gpu_advice": self.gpu_advice,
        }


def reported(cases: Sequence[Case], asked: Asked, failed: Sequence[Failed] = ()) -> PlanTable:
    """Returns the report that is asked for.

    Args:
        cases: All cases of the plan, at least one.
        asked: What is shown; not the runs that are not complete, for which see ``failures``.
        failed: The cells on a GPU that failed.

    Raises:
        ConfigurationError: A name or a condition is wrong, or no case fulfils the conditions.
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
