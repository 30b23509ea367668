"""Cells that are equal but for where they ran: on numbers of CPU cores, and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from inferometer.evaluators.plans.cells import CELL, Cell, Run
from inferometer.evaluators.plans.reporting.cases import CASE, Case, Figure
from inferometer.evaluators.plans.reporting.counts import count_of, quantity_of, rate_of, varying
from inferometer.evaluators.plans.reporting.ratios import ratio, scaled
from inferometer.evaluators.plans.reporting.tables import mixed, place_of
from inferometer.evaluators.plans.running.journal import RunHistory
from inferometer.evaluators.plans.running.results import Ended
from inferometer.evaluators.reports.base import Value
from inferometer.manifests.errors import ConfigurationError

USE = "gpu_utilization_percent"
"""The figure of a monitor that says how much of the time the GPU was at work."""
_CORES = ("threads", "cell.cores")
_GPUS = ("devices", "num_gpus", "gpus")
_DEVICE = {"using_gpu", "gpu", "use_gpu", "device", "gpu_device_id", "agent", *_GPUS, *_CORES}
_OFF = ("", "0", "false", "no", "off", "none")


@dataclass(frozen=True, slots=True)
class Failed:
    """A run on a GPU that is not complete: its key, and why."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Cases that are equal but for where they ran: on numbers of cores, and on a GPU.

    Attributes:
        dimensions: What they have in common.
        cpu: The case of each number of cores, sorted.
        rates: Their rates.
        gpu: The fastest case on a GPU.
        gpu_rate: Its rate.
    """

    dimensions: Mapping[str, Value]
    cpu: Mapping[float, Case]
    rates: Mapping[float, Figure]
    gpu: Case
    gpu_rate: Figure

    @property
    def best(self) -> float:
        """The number of cores with the highest rate."""
        return max(self.rates, key=lambda cores: self.rates[cores].value)

    @property
    def reaching(self) -> float | None:
        """The least number of cores whose rate is that of the GPU; None if none measured has it."""
        return next((n for n, rate in self.rates.items() if rate.value >= self.gpu_rate.value), None)

    @property
    def times(self) -> Figure:
        """The rate of the GPU over the highest on the CPU."""
        return _known(ratio(self.gpu_rate, self.rates[self.best]))

    @property
    def even(self) -> Figure:
        """How many cores do the work of the GPU, each as fast as where a core was fastest.

        More cores share less well as a rule, so that no fewer cores than this reach its rate.
        """
        a_core = (scaled(rate, 1 / cores) for cores, rate in self.rates.items())
        return _known(ratio(self.gpu_rate, max(a_core, key=lambda rate: rate.value)))

    @property
    def use_percent(self) -> float | None:
        """The mean use of the GPU, if it is known."""
        figure = self.gpu.figures.get(USE)
        return None if figure is None else figure.value


def asks_for_gpu(cell: Cell) -> bool:
    """Returns whether a cell asks for a GPU."""
    given = {name: str(value).strip().lower() for name, value in cell.options.items() if value is not None}
    if given.get("device") == "gpu":
        return True
    if "gpus" in given and given["gpus"] not in ("", "[]"):
        return True  # a list, in which 0 is the first GPU
    return any(given.get(name, "") not in _OFF for name in ("gpu", "use_gpu", "num_gpus"))


def failed_on_gpu(runs: Sequence[Run], history: Mapping[str, RunHistory]) -> tuple[Failed, ...]:
    """Returns the runs that ask for a GPU and ended incomplete."""
    ended = [(run, history[run.key].result) for run in runs if run.key in history and asks_for_gpu(run.cell)]
    return tuple(
        Failed(run.key, result.reason or result.ended.value)
        for run, result in ended
        if result is not None and result.ended is not Ended.COMPLETE
    )


def on_one_gpu(case: Case) -> bool:
    """Whether a case on a GPU ran on one alone, as far as it is known."""
    return all((count_of(case, name) or 1) == 1 for name in _GPUS)


def told_failed(failed: Sequence[Failed]) -> str:
    """Returns how many runs on a GPU are not complete, and why the first is not."""
    first, count = failed[0], len(failed)
    are = "runs on a GPU are" if count > 1 else "run on a GPU is"
    return f"{count} {are} not complete, such as {first.key}: {first.reason}"


def check_sides(cpu: Sequence[Case], one: Sequence[Case], gpus: int, failed: Sequence[Failed]) -> None:
    """Raises where there is nothing to compare.

    Args:
        cpu: The cases on the CPU.
        one: Those on one GPU.
        gpus: How many there are on any number of GPUs.
        failed: The runs on a GPU that are not complete.

    Raises:
        ConfigurationError: One side has no case.
    """
    if not one:
        reason = "there is none on one GPU alone" if gpus else "there is none on a GPU"
        told = f": {told_failed(failed)}" if failed and not gpus else "; add one to the plan, or run it"
        raise ConfigurationError(
            f"the advice takes cells on a GPU beside those on the CPU, and {reason}{told}"
        )
    if not cpu:
        raise ConfigurationError(
            "the advice takes cells on the CPU beside those on a GPU, and there is none; add some to the plan"
        )


def cores_dimension(on_cpu: Sequence[Case]) -> str:
    """Returns the dimension that counts the cores of cells on the CPU.

    Raises:
        ConfigurationError: None varies.
    """
    found = varying(on_cpu, _CORES)
    if found:
        return found[0]
    raise ConfigurationError(
        "the advice takes cells on the CPU with several numbers of threads or cores, and those have one; "
        "add threads to the variables"
    )


def rate_in(case: Case, figure: str) -> Figure | None:
    """Returns the rate of a case by a time or a rate; None where it has none."""
    measured = case.figures.get(figure)
    return None if measured is None else rate_of(measured, quantity_of(figure))


def equal_dimensions(cases: Sequence[Case], over: str) -> tuple[str, ...]:
    """Returns the dimensions that are equal in a group."""
    names = dict.fromkeys(name for case in cases for name in (*case.cell.options, *CASE))
    return tuple(name for name in names if name not in _DEVICE and name != over and not name.startswith(CELL))


def paired(
    on_cpu: Sequence[Case], on_gpu: Sequence[Case], names: Sequence[str], over: str, figure: str
) -> Iterator[DeviceGroup]:
    """Yields the groups that have cases on both sides.

    Args:
        on_cpu: The cases on the CPU; each has a rate.
        on_gpu: Those on a GPU.
        names: The dimensions that are equal in a group.
        over: The dimension that counts the cores.
        figure: The figure.

    Raises:
        ConfigurationError: Two cases on the CPU have the same number of cores in a group.
    """
    by_cores: dict[tuple[str, ...], dict[float, Case]] = {}
    for case in on_cpu:
        number = count_of(case, over)
        if number is None or number <= 0:
            continue
        other = by_cores.setdefault(place_of(case, names), {}).setdefault(number, case)
        if other is not case:
            raise ConfigurationError(mixed(other, case, (*names, over)))
    for place, cpu in by_cores.items():
        gpus = [case for case in on_gpu if place_of(case, names) == place]
        if not gpus:
            continue
        fastest = max(gpus, key=lambda case: _known(rate_in(case, figure)).value)
        ordered = dict(sorted(cpu.items()))
        rates = {number: _known(rate_in(case, figure)) for number, case in ordered.items()}
        yield DeviceGroup(fastest.dimensions, ordered, rates, fastest, _known(rate_in(fastest, figure)))


def unpaired(on_cpu: Sequence[Case], on_gpu: Sequence[Case], names: Sequence[str]) -> str:
    """Returns why no case on a GPU has one on the CPU."""
    first, second = on_cpu[0], on_gpu[0]
    differing = [name for name in names if place_of(first, (name,)) != place_of(second, (name,))]
    return (
        "no cell on a GPU equals one on the CPU otherwise: "
        f"{first.cell.id} and {second.cell.id} differ in {', '.join(differing)}"
    )


def _known(figure: Figure | None) -> Figure:
    """A figure of cases that were chosen because they have it."""
    if figure is None:
        raise ValueError("a rate is missing")
    return figure
