"""Advice on whether a GPU pays off: its rate compared with the rates of several numbers of CPU cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from inferometer.evaluators.drawing.charts import Drawing, Label, PointChart, Rule, plural
from inferometer.evaluators.plans.cells import CELL, Cell, Run
from inferometer.evaluators.plans.reporting.cases import Case, Figure, figure_columns, ratio, scaled
from inferometer.evaluators.plans.reporting.scaling import (
    Quantity,
    by_count,
    count_of,
    one_figure,
    quantity_of,
    rate_of,
    varying,
    whole,
)
from inferometer.evaluators.plans.reporting.tables import (
    DOUBTS,
    PlanTable,
    Point,
    check_dimensions,
    dimension_columns,
    drawing_of,
    figure_text,
    figure_values,
    interval_columns,
    is_far,
    lines_through,
    notes_on,
    place_of,
    point_series,
    told_of,
)
from inferometer.evaluators.plans.running.folder import Ended, Result, RunHistory
from inferometer.evaluators.reports.base import Column, Row, Value
from inferometer.manifests.errors import ConfigurationError

USE = "gpu_utilization_percent"
"""The monitor's figure for the share of the time in which the GPU was busy, in percent."""
_CORES = ("threads", "cell.cores")
_GPUS = ("devices", "num_gpus", "gpus")
_DEVICE = {"using_gpu", "gpu", "use_gpu", "device", "gpu_device_id", "agent", *_GPUS, *_CORES}
_OFF = ("", "0", "false", "no", "off", "none")
LITTLE_USE_PERCENT = 50.0
"""The advice mentions a mean GPU utilization below this."""
_RATES = ("throughput_inputs_per_s", "throughput_samples_per_s", "samples_per_s", "max_qps", "goodput_qps")


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Cases that are equal except for where they ran: on several numbers of CPU cores, and on a GPU.

    Attributes:
        cpu: The case for each number of cores, in ascending order.
        rates: The rates of these cases.
        gpu: The fastest case on a GPU.
        gpu_rate: The rate of that case.
    """

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
        """The smallest number of cores that reaches the GPU's rate; None if no measured number does."""
        return next((n for n, rate in self.rates.items() if rate.value >= self.gpu_rate.value), None)

    @property
    def times(self) -> Figure:
        """The GPU's rate divided by the highest rate on the CPU."""
        return _known(ratio(self.gpu_rate, self.rates[self.best]))

    @property
    def even(self) -> Figure:
        """The number of cores that match the GPU's rate, if each has the highest measured rate per core.

        As a rule, the rate per core falls as cores are added, so fewer cores than this cannot reach the
        GPU's rate.
        """
        a_core = (scaled(rate, 1 / cores) for cores, rate in self.rates.items())
        return _known(ratio(self.gpu_rate, max(a_core, key=lambda rate: rate.value)))

    @property
    def use_percent(self) -> float | None:
        """The mean utilization of the GPU; None if it is unknown."""
        figure = self.gpu.figures.get(USE)
        return None if figure is None else figure.value


def asks_for_gpu(cell: Cell) -> bool:
    """Returns whether a cell requests a GPU."""
    given = {name: str(value).strip().lower() for name, value in cell.options.items() if value is not None}
    if given.get("device") == "gpu":
        return True
    if "gpus" in given and given["gpus"] not in ("", "[]"):
        return True  # a list, in which 0 is the first GPU
    return any(given.get(name, "") not in _OFF for name in ("gpu", "use_gpu", "num_gpus"))


def failed_on_gpu(runs: Sequence[Run], history: Mapping[str, RunHistory]) -> tuple[Result, ...]:
    """Returns the results of the runs that request a GPU and ended without completing."""
    ended = (history[run.key].result for run in runs if run.key in history and asks_for_gpu(run.cell))
    return tuple(each for each in ended if each is not None and each.ended is not Ended.COMPLETE)


def _told_failed(failed: Sequence[Result]) -> str:
    """Returns how many runs on a GPU are not complete, and why the first one is not."""
    first, count = failed[0], len(failed)
    are = "runs on a GPU are" if count > 1 else "run on a GPU is"
    return f"{count} {are} not complete, such as {first.key}: {first.reason or first.ended.value}"


def _check_sides(cpu: Sequence[Case], one: Sequence[Case], gpus: int, failed: Sequence[Result]) -> None:
    """Raises ConfigurationError unless both sides have cases; ``gpus`` counts those on any number of GPUs."""
    if not one:
        reason = "there is none on one GPU alone" if gpus else "there is none on a GPU"
        told = f": {_told_failed(failed)}" if failed and not gpus else "; add one to the plan, or run it"
        raise ConfigurationError(
            f"the advice needs cells on a GPU besides those on the CPU, but {reason}{told}"
        )
    if not cpu:
        raise ConfigurationError(
            "the advice needs cells on the CPU besides those on a GPU, but there is none; add one to the plan"
        )


def _cores_dimension(on_cpu: Sequence[Case]) -> str:
    """Returns the dimension that counts the cores; raises ConfigurationError if none varies."""
    if found := varying(on_cpu, _CORES):
        return found[0]
    raise ConfigurationError(
        "the advice needs cells on the CPU with several numbers of threads or cores, but all have the same; "
        "add threads to the variables"
    )


def _rate_in(case: Case, figure: str) -> Figure | None:
    """Returns the rate of a case from its time or rate; None if it has neither."""
    measured = case.figures.get(figure)
    return None if measured is None else rate_of(measured, quantity_of(figure))


def _paired(
    on_cpu: Sequence[Case], on_gpu: Sequence[Case], names: Sequence[str], over: str, figure: str
) -> Iterator[DeviceGroup]:
    """Yields the groups of cases that are equal in the dimensions ``names`` and have cases on both sides.

    Raises:
        ConfigurationError: Two cases on the CPU have the same number of cores in a group.
    """
    counted = [case for case in on_cpu if (count_of(case, over) or 0) > 0]
    for place, cpu in by_count(counted, names, over).items():
        gpus = [case for case in on_gpu if place_of(case, names) == place]
        if not gpus:
            continue
        fastest = max(gpus, key=lambda case: _known(_rate_in(case, figure)).value)
        rates = {number: _known(_rate_in(case, figure)) for number, case in cpu.items()}
        yield DeviceGroup(cpu, rates, fastest, _known(_rate_in(fastest, figure)))


def _unpaired(on_cpu: Sequence[Case], on_gpu: Sequence[Case], names: Sequence[str]) -> str:
    """Returns why no case on a GPU has a counterpart on the CPU."""
    first, second = on_cpu[0], on_gpu[0]
    differing = [name for name in names if place_of(first, (name,)) != place_of(second, (name,))]
    return (
        "no cell on a GPU equals one on the CPU in all else: "
        f"{first.cell.id} and {second.cell.id} differ in {', '.join(differing)}"
    )


def _known(figure: Figure | None) -> Figure:
    """Returns a figure of cases that were selected because they have it."""
    if figure is None:
        raise ValueError("a rate is missing")
    return figure


class Verdict(str, Enum):
    """The verdict on whether a GPU is worth as many cores as the cluster charges for it."""

    WORTH = "worth"
    NOT_WORTH = "not worth"
    UNDECIDED = "undecided"

    @classmethod
    def of(cls, even: Figure, cores_per_gpu: float) -> Verdict:
        """Returns the verdict: undecided if the interval of the break-even includes the price."""
        if even.ends is None or even.ends[0] <= cores_per_gpu <= even.ends[1]:
            return cls.UNDECIDED
        return cls.WORTH if cores_per_gpu < even.ends[0] else cls.NOT_WORTH


def gpu_advice(
    cases: Sequence[Case],
    values: Sequence[str] = (),
    over: str | None = None,
    cores_per_gpu: float | None = None,
    failed: Sequence[Result] = (),
) -> PlanTable:
    """Returns, for each group of otherwise equal cases, whether a GPU is worth its price in cores.

    The break-even is the GPU's rate divided by the highest measured rate per core, with the interval of
    ``ratio``; a GPU that costs fewer cores is worth it. Parameters with a dot, such as ``cell.software``, may
    differ between the CPU and the GPU. Of several cases on a GPU, the fastest is used.

    Args:
        cases: The cases.
        values: The figure, a time or a rate; empty for the throughput, or else the main figure.
        over: The dimension that counts the cores; None for threads or cores, whichever varies.
        cores_per_gpu: How many cores a GPU counts for; None if it is unknown.
        failed: The results of the runs on a GPU that are not complete.

    Raises:
        ConfigurationError: There is nothing to compare, a name is wrong, or cases differ in something else.
    """
    rates = [name for name in _RATES if all(name in case.figures for case in cases)]
    figure = one_figure(cases, values or rates[:1])
    measured = [case for case in cases if _rate_in(case, figure) is not None]
    on_cpu = [case for case in measured if case.dimensions.get("using_gpu") is False]
    on_gpu = [case for case in measured if case.dimensions.get("using_gpu") is True]
    # as far as it is known
    one = [case for case in on_gpu if all((count_of(case, name) or 1) == 1 for name in _GPUS)]
    _check_sides(on_cpu, one, len(on_gpu), failed)
    over = over if over is not None else _cores_dimension(on_cpu)
    check_dimensions(on_cpu, (over,))
    every = dict.fromkeys(name for case in measured for name in (*case.cell.options, *case.apart))
    names = [n for n in every if n not in _DEVICE and n != over and not n.startswith(CELL)]
    groups = list(_paired(on_cpu, one, names, over, figure))
    if not groups:
        raise ConfigurationError(_unpaired(on_cpu, one, names))
    numbers = sorted({number for group in groups for number in group.rates})
    shown = [name for name in names if len({place_of(case, (name,)) for case in measured}) > 1]
    several = len(on_gpu) - len(one)
    places = {place_of(group.gpu, names) for group in groups}
    alone = sum(place_of(case, names) not in places for case in (*on_cpu, *one))
    notes = (
        *((f"Left out: {plural(several, 'cell')} on several GPUs.",) if several else ()),
        *((f"Left out: {plural(alone, 'cell')} without an equal on the other device.",) if alone else ()),
        *((f"{_told_failed(failed)}.",) if failed else ()),
        *notes_on([*on_cpu, *one], (figure,)),
    )
    return PlanTable(
        name="gpu_advice",
        caption=f"whether a GPU is worth asking for, by {_rate_header(figure)}",
        columns=tuple(_columns(shown, numbers, over, figure, cores_per_gpu)),
        rows=tuple(_row(group, shown, numbers, over, cores_per_gpu) for group in groups),
        notes=notes,
        drawing=_drawing(groups, shown, over, figure),
    )


def _rate_header(figure: str) -> str:
    header = figure_columns()[figure].header
    return f"1 / {header}" if quantity_of(figure) is Quantity.TIME else header


def _columns(
    names: Sequence[str], numbers: Sequence[float], over: str, figure: str, price: float | None
) -> Iterator[Column]:
    yield from dimension_columns(names)
    if price is not None:
        yield Column("verdict", f"at {price:g} cores a GPU", stays=True)
    yield from interval_columns(Column("ratio", "GPU / best CPU", decimals=2, stays=True))
    yield from interval_columns(Column("break_even_cores", "break-even (cores)", decimals=1, stays=True))
    yield Column("reaching_cores", "measured cores that reach it", stays=True)
    yield Column(USE, "GPU use (%)", decimals=1)
    header, decimals = _rate_header(figure), 1 if quantity_of(figure) is Quantity.RATE else 4
    for number in numbers:
        yield from interval_columns(
            Column(f"rate[{over}={number:g}]", f"{over}={number:g}: {header}", decimals, detail=1)
        )
    yield from interval_columns(Column("rate[gpu]", f"GPU: {header}", decimals, detail=1))
    yield Column("advice", "advice", stays=True, least=30, wraps=True)
    yield DOUBTS


def _row(
    group: DeviceGroup, names: Sequence[str], numbers: Sequence[float], over: str, price: float | None
) -> Row:
    dimensions = {name: group.gpu.dimensions.get(name) for name in names}
    values: dict[str, Value] = {}
    for number in numbers:
        values |= figure_values("rate", group.rates.get(number), f"{over}={number:g}")
    verdict = {} if price is None else {"verdict": Verdict.of(group.even, price).value}
    reaching = group.reaching
    told = {f"{over}={number:g}": case.doubts for number, case in group.cpu.items()} | {
        "GPU": group.gpu.doubts
    }
    return {
        **dimensions,
        **verdict,
        **figure_values("ratio", group.times),
        **figure_values("break_even_cores", group.even),
        "reaching_cores": "none measured" if reaching is None else whole(reaching),
        USE: group.use_percent,
        **values,
        **figure_values("rate", group.gpu_rate, "gpu"),
        "advice": _advice_of(group, price),
        DOUBTS.key: ", ".join(f"{of}: {doubts}" for of, doubts in told.items() if doubts) or None,
    }


def _advice_of(group: DeviceGroup, price: float | None) -> str:
    """Returns the advice in a sentence; ``price`` is the GPU's price in cores, or None if unknown."""
    cores = f"{group.best:g} core{'' if group.best == 1 else 's'}"
    told = f"GPU: {figure_text(group.times)} times the rate of {cores}"
    even, use_percent = group.even, group.use_percent
    if price is None:
        told += f"; worth asking for where a GPU counts as fewer than {figure_text(even)} cores"
    else:
        asked = {
            Verdict.WORTH: "worth asking for",
            Verdict.NOT_WORTH: "not worth asking for",
            Verdict.UNDECIDED: "undecided without more repetitions",
        }[Verdict.of(even, price)]
        told += f"; {asked} at {price:g} cores a GPU: it breaks even at {figure_text(even)}"
    if use_percent is not None and use_percent < LITTLE_USE_PERCENT:
        told += f"; the GPU was at work {use_percent:.0f} % of the run, so try larger batches or more loaders"
    return told


def _drawing(groups: Sequence[DeviceGroup], names: Sequence[str], over: str, figure: str) -> Drawing | None:
    """Draws a chart for each group: the rate by the number of cores, with the GPU's rate as a level line."""
    charts = []
    for group in groups:
        points = [
            Point(number, rate.value, "CPU", "", f"{number:g} cores: {figure_text(rate)}")
            for number, rate in group.rates.items()
        ]
        charts.append(
            PointChart(
                Label(told_of(group.gpu, names) or "CPU and GPU", ""),
                over.replace("_", " "),
                _rate_header(figure),
                (*lines_through(points), *point_series(points)),
                rules=(Rule(group.gpu_rate.value, f"GPU {figure_text(group.gpu_rate)}"),),
                x_logarithmic=is_far([point.x for point in points]),
                tall=len(groups) == 1,
            )
        )
    return drawing_of("Is the GPU worth asking for?", charts, ("CPU",))
