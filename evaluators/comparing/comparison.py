"""Comparison of two sides: the figures to compare, their ratios with verdicts, and the rows of a report.

A side consists of evaluations of one configuration. Besides times, the figures include the answers of
searches for the highest rate that meets a latency bound, and top-1 accuracies over the same inputs. The
picture shows the times of two evaluations, batch by batch, on one axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np

from inferometer.evaluators.comparing.conditions import SAMPLES, differences, is_of_the_machine
from inferometer.evaluators.evaluation import Evaluation, Status, processes_of
from inferometer.evaluators.kinds.kind import Kind
from inferometer.evaluators.kinds.load.measurement import Method, RateAnswer
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.reports.base import Column, Row, row_of
from inferometer.evaluators.statistics import Z_95, t_quantile_95
from inferometer.evaluators.tasks.metric import Accuracy, TaskResult
from inferometer.evaluators.verdict import (
    MAX_QPS,
    THROUGHPUT,
    TOKENS,
    TOP1,
    Ratio,
    RunTimes,
    Verdict,
    compare,
    listed,
    noise,
    percent_of,
    time_of,
)
from inferometer.manifests.errors import ConfigurationError

DIFFERS = "differs: "
"""The prefix of a note that names a condition in which the sides differ."""
_QUESTION = {"load", "concurrency", "percentile", "latency bound"}
"""Conditions that two sides must share: if these differ, the figures answer different questions."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The evaluations of one side: of one kind, and measured under the same conditions.

    Attributes:
        name: The side's name in messages.
        evaluations: At least one evaluation, each complete.

    Raises:
        ConfigurationError: There is no evaluation, one cannot be compared, or their conditions differ.
    """

    name: str
    evaluations: tuple[Evaluation, ...]

    def __post_init__(self) -> None:
        if not self.evaluations:
            raise ConfigurationError(f"{self.name} holds no evaluation that can be compared")
        for evaluation in self.evaluations:
            if reason := _unfit(evaluation):
                raise ConfigurationError(f"{self.name}: evaluation {evaluation.id} {reason}")
        first, *others = self.evaluations
        for other in others:
            for name, one, another in differences(first, other):
                if not is_of_the_machine(name) and not name.startswith(self.kind.mixes):
                    raise ConfigurationError(
                        f"{self.name} mixes evaluations with {name} {one} and {another}, such as {first.id} "
                        f"and {other.id}; all evaluations of one side must be alike"
                    )

    @property
    def kind(self) -> Kind[Any]:
        """The kind of measurement of its evaluations."""
        return kind_of(self.evaluations[0])

    @property
    def measurements(self) -> Sequence[Any]:
        """The measurements of its evaluations, all of one kind."""
        return [each.measurement for each in self.evaluations]

    @property
    def accuracies(self) -> Sequence[Accuracy]:
        """The accuracies that have evaluated inputs."""
        every = map(self.kind.accuracy, self.measurements)
        return [accuracy for accuracy in every if accuracy is not None and accuracy.evaluated]

    @property
    def first_result(self) -> TaskResult | None:
        """The first result of a task among its evaluations; None if there is none."""
        return next((each for each in map(self.kind.result, self.measurements) if each is not None), None)

    @property
    def processes(self) -> int:
        """The number of processes in which the model ran, as far as known; see ``processes_of``."""
        return processes_of(self.evaluations)

    @property
    def rates(self) -> Mapping[str, Sequence[RateAnswer]]:
        """Its rates by figure; the answer that the bounds of one search share counts once."""
        found: dict[str, dict[Any, RateAnswer]] = {}
        for each in self.evaluations:
            for figure, rate in self.kind.rates(each.measurement).items():
                found.setdefault(figure, {})[each.group_id or each.id, each.created_at, rate] = rate
        return {figure: list(rates.values()) for figure, rates in found.items()}

    def run_times(self, name: str) -> Sequence[RunTimes]:
        """Returns a time of each run: of its full batches, or of its queries after the empty start.

        Raises:
            ConfigurationError: A run has no times.
        """
        times = []
        for evaluation in self.evaluations:
            try:
                times.append(self.kind.named_times(evaluation, name))
            except ValueError as error:
                raise ConfigurationError(f"{self.name}: evaluation {evaluation.id} has no {error}") from error
        return times

    def differences(self, other: Side) -> Iterator[str]:
        """Yields the differences from another side, each as ``batch size: 16 (A), 64 (B)``."""
        for name, left, right in self.differing(other):
            yield f"{name}: {left} ({self.name}), {right} ({other.name})"

    def check_comparable(self, other: Side) -> None:
        """Checks that the figures of another side answer the same question.

        Raises:
            ConfigurationError: The figures answer different questions.
        """
        if self.kind is not other.kind:
            raise ConfigurationError(
                f"{self.name} is {self.kind.phrase} and {other.name} {other.kind.phrase}; "
                "compare evaluations of the same kind"
            )
        for name, left, right in self.differing(other):
            if name in _QUESTION:
                raise ConfigurationError(
                    f"{self.name} has {name} {left} and {other.name} {right}, so their figures answer "
                    "different questions; compare evaluations that agree in this"
                )

    def differing(self, other: Side) -> Iterator[tuple[str, str, str]]:
        """Yields each condition whose values on both sides are not the same ones, and the values of each."""
        pairs = product(self.evaluations, other.evaluations)
        found = list(dict.fromkeys(each for one, two in pairs for each in differences(one, two)))
        for name in dict.fromkeys(name for name, *_ in found):
            left, right = (dict.fromkeys(each[at] for each in found if each[0] == name) for at in (1, 2))
            if left.keys() != right.keys():
                yield name, ", ".join(left), ", ".join(right)


def _unfit(evaluation: Evaluation) -> str:
    """Returns the reason why an evaluation cannot be compared; empty if it can be."""
    if evaluation.status is Status.FAILED:
        return "has failed: all of its inputs failed; leave it out"
    if evaluation.status is not Status.COMPLETE:
        return f"is {evaluation.status.value}: its figures cover only a part; leave it out"
    return kind_of(evaluation).unfit(evaluation.measurement)


def compare_rates(
    a: Sequence[RateAnswer], b: Sequence[RateAnswer], *, threshold: float, figure: str = MAX_QPS
) -> Ratio:
    """Compares the answers of B's searches, or rates of its runs, with those of A, on a logarithmic scale.

    A side's rate is the geometric mean of its answers. The error of one answer comes from its own interval,
    whose two halves may differ; the halves of the two sides are added in quadrature (Zou and Donner,
    "Construction of confidence limits about effect measures", Statistics in Medicine 27, 2008). If a side has
    several answers, their spread gives a second interval, by Student's t distribution with the variance
    pooled over both sides, and the wider interval is used: searches that agree by chance are no more exact
    than any one of them, and they are less exact on a machine whose speed changes.

    The answer "none" is a rate of 0. The answer "at least" has no upper end, and an answer "below" has no
    lower end and no value; the ratio lacks the corresponding ends. A rate with neither end has an unknown
    error; then, only the spread of several answers gives an interval.

    Args:
        a: The answers of A, at least one.
        b: The answers of B, at least one.
        threshold: The fraction by which the rate may differ; 0.05 is 5 %.
        figure: The rate.

    Raises:
        ValueError: A side has no answer.
    """
    if not a or not b:
        raise ValueError("each side needs at least one answer")
    of_a, of_b = _Rates.of(a), _Rates.of(b)
    pair = math.exp(of_a.log), math.exp(of_b.log)
    return Ratio.judged(figure, pair, _value(of_a, of_b), _interval(of_a, of_b), threshold)


def noise_of_rates(answers: Sequence[RateAnswer]) -> float:
    """Returns the largest relative difference between two answers of repeated searches.

    Returns:
        0.05 if the highest answer is 1.05 times the lowest; infinite if any answer has no rate.

    Raises:
        ValueError: There are fewer than two answers.
    """
    if len(answers) < 2:
        raise ValueError(f"noise needs at least two answers, and has {len(answers)}")
    rates = [answer.rate_qps for answer in answers]
    if not all(rates):
        return math.inf
    return max(max(one, other) / min(one, other) for one, other in combinations(filter(None, rates), 2)) - 1


@dataclass(frozen=True, slots=True)
class _Rates:
    """The answers of a side, in logarithms of queries per second, with their mean ``log``.

    A value is -inf if there is no rate, and NaN if only a bound is known. The interval of the mean is
    ``log - below`` to ``log + above``; ``low`` and ``high`` are the outermost ends of the answers.
    """

    logs: tuple[float, ...]
    log: float
    below: float
    above: float
    low: float
    high: float

    @classmethod
    def of(cls, answers: Sequence[RateAnswer]) -> _Rates:
        ends = np.asarray([_ends(answer) for answer in answers])
        lows, logs, highs = ends.T
        every = tuple(logs.tolist())
        if np.isneginf(logs).all():
            return cls(every, -math.inf, 0.0, 0.0, -math.inf, -math.inf)
        low, high = float(lows.min()), float(highs.max())
        if not np.isfinite(logs).all():
            return cls(every, math.nan, math.inf, math.inf, low, high)
        below, above = (math.sqrt(float((half**2).sum())) / len(logs) for half in (logs - lows, highs - logs))
        return cls(every, float(logs.mean()), below, above, low, high)

    @property
    def is_none(self) -> bool:
        """Whether every answer says that no rate meets the bound."""
        return self.log == -math.inf


def _ends(answer: RateAnswer) -> tuple[float, float, float]:
    """Returns the lower end, the value and the upper end of an answer."""
    if answer.method == Method.NONE.value:
        return -math.inf, -math.inf, -math.inf
    value = math.nan if answer.rate_qps is None else _log(answer.rate_qps)
    if answer.low_qps is answer.high_qps is None and value > -math.inf:
        return math.nan, value, math.nan
    low = -math.inf if answer.low_qps is None else _log(answer.low_qps)
    high = math.inf if answer.high_qps is None else _log(answer.high_qps)
    return low, value, high


def _log(rate_qps: float) -> float:
    return math.log(rate_qps) if rate_qps > 0 else -math.inf


def _value(a: _Rates, b: _Rates) -> float:
    if a.is_none:
        return math.nan if b.is_none or math.isnan(b.log) else math.inf
    return math.exp(b.log - a.log)


def _interval(a: _Rates, b: _Rates) -> tuple[float | None, float | None]:
    """Returns the 95 % interval of the ratio; None if it is unknown."""
    if a.is_none:
        return (None, None) if b.is_none or math.isnan(b.log) else (math.inf, math.inf)
    if b.is_none:
        return (None, None) if math.isnan(a.log) else (0.0, 0.0)
    difference = b.log - a.log
    if math.isnan(difference):
        low, high = b.low - a.high, b.high - a.low
    else:
        between = _between(a.logs, b.logs)
        if not between and math.isnan(b.below + a.above):
            return None, None
        low = difference - max(between, math.hypot(b.below, a.above))
        high = difference + max(between, math.hypot(b.above, a.below))
    return math.exp(low), math.exp(high)


def _between(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns half the width of the interval given by the spread of repeated answers; 0 without repeats."""
    degrees = len(a) + len(b) - 2
    if not degrees:
        return 0.0
    squares = sum(float(np.square(np.asarray(logs) - np.mean(logs)).sum()) for logs in (a, b))
    return t_quantile_95(degrees) * math.sqrt(squares / degrees * (1 / len(a) + 1 / len(b)))


_HALF = 0.5


def compare_top1(a: Sequence[Accuracy], b: Sequence[Accuracy], *, threshold: float) -> Ratio:
    """Compares the top-1 accuracy of B with that of A over the same inputs.

    The interval covers the ratio over other inputs of the same kind, according to Katz et al. ("Obtaining
    confidence intervals for the risk ratio in cohort studies", Biometrics 34, 1978), with half a wrong and
    half a right answer added to each side. It assumes independent sides; for the same inputs it is wider than
    necessary. Repeated runs of a side use the same inputs, so they do not narrow it.

    Over the same inputs, the ratio itself has no sampling error: within the threshold, B is the same; beyond
    it, B is worse or better if the interval excludes 1, and otherwise undecided.

    Args:
        a: The accuracies of A, at least one with evaluated inputs.
        b: The accuracies of B, at least one with evaluated inputs.
        threshold: The fraction by which top-1 may differ; 0.01 is 1 %.

    Raises:
        ValueError: A side has no evaluated input.
    """
    if not all(any(each.evaluated for each in side) for side in (a, b)):
        raise ValueError("each side needs at least one evaluated input")
    shares = [sum(each.top1 for each in side) / sum(each.evaluated for each in side) for side in (a, b)]
    variance, logs = 0.0, []
    for share, side in zip(shares, (a, b), strict=True):
        inputs = min(each.evaluated for each in side if each.evaluated)
        right, every = share * inputs + _HALF, inputs + 2 * _HALF
        variance += 1 / right - 1 / every
        logs.append(math.log(right / every))
    reach = Z_95 * math.sqrt(variance)
    low, high = (math.exp(logs[1] - logs[0] + way * reach) for way in (-1, 1))
    value = 1.0 if shares[0] == shares[1] else shares[1] / shares[0] if shares[0] else math.inf
    if 1 / (1 + threshold) <= value <= 1 + threshold:
        verdict = Verdict.SAME
    elif low > 1:
        verdict = Verdict.BETTER
    else:
        verdict = Verdict.WORSE if high < 1 else Verdict.UNDECIDED
    return Ratio(TOP1, shares[0], shares[1], value, low, high, threshold, verdict)


_MOST_NOISE = 1.0
_SEED = 0  # the same evaluations have the same intervals, whenever they are compared


def chosen_figures(a: Side, b: Side, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the figures to compare: the ``wanted`` ones, or all that both sides have.

    Raises:
        ConfigurationError: The sides cannot be compared, or lack a wanted figure.
    """
    a.check_comparable(b)
    there = every = a.kind.figures(a.measurements, b.measurements)
    other_inputs = {"dataset", SAMPLES, "inputs"}.intersection(name for name, *_ in a.differing(b))
    if other_inputs or not (a.accuracies and b.accuracies):
        there = tuple(figure for figure in there if figure != TOP1)
    figures = there if wanted is None else tuple(wanted)
    times = {time_of(figure) for figure in there if percent_of(figure) is not None}
    for figure in figures:
        if figure not in there and (percent_of(figure) is None or time_of(figure) not in times):
            raise ConfigurationError(_missing(figure, there, every))
    _check_undisturbed(figures, a, b)
    return figures


def _check_undisturbed(figures: Sequence[str], *sides: Side) -> None:
    """Raises ConfigurationError if a profiler slowed a run down, which changes all figures but top-1."""
    for side, each in ((one, each) for one in sides for each in one.evaluations):
        if each.profiled and set(figures) - {TOP1}:
            raise ConfigurationError(
                f"{side.name}: evaluation {each.id} ran under a profiler ({each.trace_level.name}), "
                "which slows the model down; evaluate with --trace_level=MODEL_TRACE or less"
            )


def measured_thresholds(runs: Side, figures: Sequence[str]) -> dict[str, float]:
    """Returns the threshold of each figure that repeated runs of one system give; top-1 has none.

    If runs differ by more than the figure itself, its threshold is infinite.

    Raises:
        ConfigurationError: There are fewer than two runs, or a profiler slowed one down.
    """
    rates = {figure: answers for figure, answers in runs.rates.items() if figure in figures}
    if min(map(len, (runs.evaluations, *rates.values()))) < 2:
        raise ConfigurationError(
            f"{runs.name} has 1 run; give at least two of the same system, or --threshold"
        )
    _check_undisturbed(figures, runs)
    found = {figure: noise_of_rates(answers) for figure, answers in rates.items()}
    of_times = [figure for figure in figures if figure not in {*found, TOP1}]
    for name in dict.fromkeys(map(time_of, of_times)):
        found |= noise(runs.run_times(name), [each for each in of_times if time_of(each) == name])
    return {figure: most if most <= _MOST_NOISE else math.inf for figure, most in found.items()}


def compare_sides(
    a: Side, b: Side, figures: Sequence[str], thresholds: Mapping[str, float]
) -> tuple[Ratio, ...]:
    """Compares two sides, which ``chosen_figures`` has checked.

    Args:
        a: The baseline.
        b: The judged side.
        figures: The figures, in order.
        thresholds: The fraction by which each figure may differ, by the figure's name.
    """
    rates, found = (a.rates, b.rates), dict[str, Ratio]()
    for figure in (each for each in figures if each in rates[0]):
        of_both = (each[figure] for each in rates)
        found[figure] = compare_rates(*of_both, threshold=thresholds[figure], figure=figure)
    of_times = [figure for figure in figures if figure not in {*found, TOP1}]
    for name in dict.fromkeys(map(time_of, of_times)):
        of_one = [figure for figure in of_times if time_of(figure) == name]
        runs = a.run_times(name), b.run_times(name)
        ratios = compare(*runs, thresholds=thresholds, seed=_SEED, figures=of_one)
        found |= {ratio.figure: ratio for ratio in ratios}
    if TOP1 in figures:
        found[TOP1] = compare_top1(a.accuracies, b.accuracies, threshold=thresholds[TOP1])
    return tuple(found[figure] for figure in figures)


def _missing(figure: str, there: Sequence[str], every: Sequence[str]) -> str:
    """Returns why a figure is missing, and which are ``there``; ``every`` has those for other inputs too."""
    if there == (MAX_QPS,):
        return f"{figure} is not a figure of searches for the highest rate; they have only {MAX_QPS}"
    if figure == TOP1 and TOP1 in every:
        return f"{figure} requires that both sides counted right answers over the same inputs; leave it out"
    if there == (THROUGHPUT,):
        reason = "all were due at once, so that latencies follow from how many there were"
        return f"{figure} is not a figure of these queries: {reason}; they have only {THROUGHPUT}"
    return f"{figure} is not a figure of these evaluations; they have {listed((*there, 'other percentiles'))}"


COLUMNS = (
    Column("figure", "figure", value="figure"),
    Column("unit", "unit"),
    Column("a", "A"),
    Column("b", "B"),
    Column("ratio", "B / A", decimals=4),
    Column("ratio_low", "low", decimals=4, value="low"),
    Column("ratio_high", "high", decimals=4, value="high"),
    Column("threshold", "threshold", decimals=4, detail=1, value="threshold"),
    Column("verdict", "verdict", value="verdict.value"),
)
"""``a`` and ``b`` are in the row's ``unit``; ``ratio_low`` to ``ratio_high`` is the ratio's 95 % interval."""
_NS_PER_MS = 1_000_000
_UNITS = {TOKENS: "tokens/s", TOP1: "share"}


def rows_of(ratios: Sequence[Ratio], counted: str) -> Iterator[Row]:
    """Yields a row for each figure; a percentile has no values if they are too few for an interval.

    Args:
        ratios: The figures.
        counted: The unit in which rates are counted, such as ``inputs``.
    """
    for ratio in ratios:
        latency = percent_of(ratio.figure) is not None
        carried = not latency or ratio.low is not None or not math.isfinite(ratio.value)
        scale = _NS_PER_MS if latency else 1
        unit = "ms" if latency else _UNITS.get(ratio.figure, f"{counted}/s")
        yield {
            **row_of(COLUMNS, ratio),
            "unit": unit,
            "a": ratio.a / scale if carried else None,
            "b": ratio.b / scale if carried else None,
            "ratio": ratio.value if carried else None,
        }
