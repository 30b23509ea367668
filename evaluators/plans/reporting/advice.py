"""Whether a GPU is worth asking for: its rate beside those of numbers of CPU cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from inferometer.evaluators.drawing.charts import Drawing, Label, PointChart, Rule
from inferometer.evaluators.plans.reporting.cases import Case, Figure, figure_columns
from inferometer.evaluators.plans.reporting.counts import Quantity, one_figure, quantity_of
from inferometer.evaluators.plans.reporting.pairing import (
    USE,
    DeviceGroup,
    Failed,
    check_sides,
    cores_dimension,
    equal_dimensions,
    on_one_gpu,
    paired,
    rate_in,
    told_failed,
    unpaired,
)
from inferometer.evaluators.plans.reporting.pictures import (
    Point,
    drawing_of,
    is_far,
    lines_through,
    point_series,
)
from inferometer.evaluators.plans.reporting.tables import (
    DOUBTS,
    PlanTable,
    check_dimensions,
    dimension_columns,
    figure_values,
    interval_columns,
    notes_on,
    place_of,
    told_of,
)
from inferometer.evaluators.plots.base import plural, readable
from inferometer.evaluators.reports.base import Column, Row, Value
from inferometer.manifests.errors import ConfigurationError

LITTLE_USE_PERCENT = 50.0
"""A lower mean use is said in the advice."""
_RATES = ("throughput_inputs_per_s", "throughput_samples_per_s", "samples_per_s", "max_qps", "goodput_qps")


class Verdict(str, Enum):
    """Whether a GPU is worth as many cores as the cluster counts it for."""

    WORTH = "worth"
    NOT_WORTH = "not worth"
    UNDECIDED = "undecided"

    @classmethod
    def of(cls, even: Figure, cores_per_gpu: float) -> Verdict:
        """Returns the verdict: undecided where the interval of the break-even includes the price."""
        if even.low is None or even.high is None or even.low <= cores_per_gpu <= even.high:
            return cls.UNDECIDED
        return cls.WORTH if cores_per_gpu < even.low else cls.NOT_WORTH


def gpu_advice(
    cases: Sequence[Case],
    values: Sequence[str] = (),
    over: str | None = None,
    cores_per_gpu: float | None = None,
    failed: Sequence[Failed] = (),
) -> PlanTable:
    """Returns, for each group of cases that are equal otherwise, whether a GPU is worth its price in cores.

    The break-even is the rate of the GPU over the highest rate of one core that was measured, with the
    interval of ``ratio``; a GPU that costs fewer cores is worth it. Parameters with a dot, such as
    ``cell.software``, may differ between the CPU and the GPU. Of several cases on a GPU, the fastest counts.

    Args:
        cases: The cases.
        values: The figure, a time or a rate; empty for the throughput, or the main one.
        over: The dimension that counts the cores; None for the threads or the cores that vary.
        cores_per_gpu: How many cores a GPU counts for; None if it is unknown.
        failed: The runs on a GPU that are not complete.

    Raises:
        ConfigurationError: There is nothing to compare, a name is wrong, or cases differ in something else.
    """
    figure = one_figure(cases, values or [name for name in _RATES if _all_have(cases, name)][:1])
    measured = [case for case in cases if rate_in(case, figure) is not None]
    on_cpu = [case for case in measured if case.dimensions.get("using_gpu") is False]
    on_gpu = [case for case in measured if case.dimensions.get("using_gpu") is True]
    one = [case for case in on_gpu if on_one_gpu(case)]
    check_sides(on_cpu, one, len(on_gpu), failed)
    over = over if over is not None else cores_dimension(on_cpu)
    check_dimensions(on_cpu, (over,))
    names = equal_dimensions(measured, over)
    groups = list(paired(on_cpu, one, names, over, figure))
    if not groups:
        raise ConfigurationError(unpaired(on_cpu, one, names))
    numbers = sorted({number for group in groups for number in group.rates})
    shown = [name for name in names if len({place_of(case, (name,)) for case in measured}) > 1]
    several = len(on_gpu) - len(one)
    places = {place_of(group.gpu, names) for group in groups}
    alone = sum(place_of(case, names) not in places for case in (*on_cpu, *one))
    notes = (
        *((f"Left out: {plural(several, 'cell')} on several GPUs.",) if several else ()),
        *((f"Left out: {plural(alone, 'cell')} without an equal on the other device.",) if alone else ()),
        *((f"{told_failed(failed)}.",) if failed else ()),
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


def _all_have(cases: Sequence[Case], name: str) -> bool:
    return all(name in case.figures for case in cases)


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
    dimensions = {name: group.dimensions.get(name) for name in names}
    values: dict[str, Value] = {}
    for number in numbers:
        values |= figure_values("rate", group.rates.get(number), f"{over}={number:g}")
    verdict = {} if price is None else {"verdict": Verdict.of(group.even, price).value}
    reaching = group.reaching
    doubts = [
        f"{told}: {case.doubts}"
        for told, case in (
            *((f"{over}={number:g}", case) for number, case in group.cpu.items()),
            ("GPU", group.gpu),
        )
        if case.doubts
    ]
    return {
        **dimensions,
        **verdict,
        **figure_values("ratio", group.times),
        **figure_values("break_even_cores", group.even),
        "reaching_cores": "none measured" if reaching is None else _whole(reaching),
        USE: group.use_percent,
        **values,
        **figure_values("rate", group.gpu_rate, "gpu"),
        "advice": advice_of(group.times, group.best, group.even, group.use_percent, price),
        DOUBTS.key: ", ".join(doubts) or None,
    }


def advice_of(
    times: Figure, best_cores: float, even: Figure, use_percent: float | None, cores_per_gpu: float | None
) -> str:
    """Returns the advice in a sentence.

    Args:
        times: The rate of the GPU over that of the best number of cores.
        best_cores: That number.
        even: The cores that do the work of the GPU; see ``gpu_advice``.
        use_percent: The mean use of the GPU; None if it is unknown.
        cores_per_gpu: How many cores a GPU counts for; None if it is unknown.
    """
    cores = f"{best_cores:g} core{'' if best_cores == 1 else 's'}"
    told = f"GPU: {_with_interval(times)} times the rate of {cores}"
    if cores_per_gpu is None:
        told += f"; worth asking for where a GPU counts as fewer than {_with_interval(even)} cores"
    else:
        asked = {
            Verdict.WORTH: "worth asking for",
            Verdict.NOT_WORTH: "not worth asking for",
            Verdict.UNDECIDED: "undecided without more repetitions",
        }[Verdict.of(even, cores_per_gpu)]
        told += f"; {asked} at {cores_per_gpu:g} cores a GPU: it breaks even at {_with_interval(even)}"
    if use_percent is not None and use_percent < LITTLE_USE_PERCENT:
        told += f"; the GPU was at work {use_percent:.0f} % of the run, so try larger batches or more loaders"
    return told


def _whole(number: float) -> int | float:
    return int(number) if number.is_integer() else number


def _with_interval(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return readable(figure.value)
    return f"{readable(figure.value)} [{readable(figure.low)}, {readable(figure.high)}]"


def _drawing(groups: Sequence[DeviceGroup], names: Sequence[str], over: str, figure: str) -> Drawing | None:
    """A chart for each group: its rate over the cores, and that of the GPU as a line across."""
    charts = []
    for group in groups:
        points = [
            Point(number, rate.value, "CPU", "", f"{number:g} cores: {_with_interval(rate)}")
            for number, rate in group.rates.items()
        ]
        charts.append(
            PointChart(
                Label(told_of(group.gpu, names) or "CPU and GPU", ""),
                over.replace("_", " "),
                _rate_header(figure),
                (*lines_through(points), *point_series(points)),
                rules=(Rule(group.gpu_rate.value, f"GPU {_with_interval(group.gpu_rate)}"),),
                x_logarithmic=is_far([point.x for point in points]),
                tall=len(groups) == 1,
            )
        )
    return drawing_of("Is the GPU worth asking for?", charts, ("CPU",))
