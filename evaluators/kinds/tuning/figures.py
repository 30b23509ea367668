"""What is known of a configuration: its trial, its figure of merit, and the chance that it is better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.kinds.load.measurement import Method, RateSearchMeasurement
from inferometer.evaluators.kinds.tuning.request import RATE, RATE_PER_CORE, RATE_PER_WATT, Configuration
from inferometer.evaluators.statistics import t_quantile_95

BLOCKS = 20
"""The number of blocks of a round's arrivals, which are paired between configurations."""
SEQUENCES = 8
"""The number of independent sequences of arrivals that the figure of the best configuration rests on."""
_SLOPE, _SLOPES = 12.0, (4.0, 60.0)
"""The usual slope of the log odds of a late query against ln(rate), and the range of those found."""
_LONGEST_STEP = math.log(1.5)
OUT_OF_TIME = "the time budget was used up"
OUT_OF_MEMORY = "its memory peaks above"
NOT_POSSIBLE = "not possible"
OUT_OF_SCORE = "its precision has"

NEARLY = 0.999
"""From which share of the highest rate that can be sent a rate is only a lower bound."""

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Trial:
    """What is known of a configuration, which a race fills in.

    Attributes:
        configuration: The configuration.
        capacity_qps: The rate at which it answered a burst; None if it was not tried.
        rate_qps: The highest rate that keeps the bound, or the given rate; None if it was not raced.
        latency_ms: The percentile of the latency at a given rate; None if the rate is sought.
        low: The lower end of the 95 % interval of the rate, or of the latency if the rate is given; None
            unless the figure was confirmed on independent arrivals.
        high: The upper end, likewise.
        better: The probability that it is better than the best; None if it was not raced, or if the rate of
            the best was only a lower bound.
        watts: The mean power of what is metered at this rate; None if it was not metered.
        queries_per_joule_low: The lower end of the 95 % interval of the rate per watt, likewise.
        queries_per_joule_high: The upper end, likewise.
        score: The first score of its precision on the dataset; None if it was not evaluated.
        score_low: The lower end of the 95 % interval of the score; None if there is none.
        score_high: The upper end, likewise.
        memory_bytes: The peak of the resident memory of this process and of those of the instances while it
            was probed; None if memory was not read.
        rounds: The number of rounds in which it was raced.
        spent_s: The time spent on it, including its opening.
        probes: The numbers of its probes, from 0; the first ones are bursts.
        stopped: Why it was not raced any further; empty for the best.
    """

    configuration: Configuration
    capacity_qps: float | None = None
    rate_qps: float | None = None
    latency_ms: float | None = None
    low: float | None = None
    high: float | None = None
    better: float | None = None
    watts: float | None = None
    queries_per_joule_low: float | None = None
    queries_per_joule_high: float | None = None
    score: float | None = None
    score_low: float | None = None
    score_high: float | None = None
    memory_bytes: int | None = None
    rounds: int = 0
    spent_s: float = 0.0
    probes: list[int] = field(default_factory=list)
    stopped: str = ""

    @property
    def cores(self) -> int:
        """The cores that the configuration is for: its instances times their threads, 1 if unknown."""
        return self.configuration.instances * (self.configuration.threads or 1)

    def cost(self, objective: str) -> float:
        """By what the objective divides the rate: cores, watts (0 if they are unknown), or 1."""
        return {RATE_PER_CORE: self.cores, RATE_PER_WATT: self.watts or 0.0}.get(objective, 1.0)

    def tell(self, figure: Figure, given_qps: float | None, *, metered: bool, confirmed: bool) -> None:
        """Sets the figures, with intervals if they are confirmed; at a given rate, that of the latency."""
        rate, self.watts = math.exp(figure.log) * figure.cost, figure.cost if metered else None
        ends = [rate * math.exp(side * figure.log_half) for side in (-1, 1)]
        if given_qps is None:
            self.rate_qps = rate
        else:
            self.rate_qps, self.latency_ms = given_qps, 1e-6 / rate
            ends = [1e-6 / end for end in reversed(ends)]
        self.low, self.high = ends if confirmed else (None, None)
        if metered and confirmed:
            half = replace(figure, blocks=figure.influences).log_half
            self.queries_per_joule_low, self.queries_per_joule_high = (
                math.exp(figure.log + side * half) for side in (-1, 1)
            )


def nothing_serves(trials: Iterable[Trial]) -> str:
    """Returns what is known if there is no best configuration, although the time sufficed."""
    larger = [each.stopped.startswith(OUT_OF_MEMORY) for each in trials if each.probes]
    if larger and all(larger):
        return "no configuration stays within the memory limit"
    return f"no configuration {'within the memory limit ' * any(larger)}can serve this load"


@dataclass(frozen=True, slots=True, eq=False)
class TuningMeasurement(RateSearchMeasurement):
    """One tuning; its ``answer`` is the rate of the best configuration, and None if the latency is sought.

    Attributes:
        trials: The configurations, the best first.
        asked: The options of the request that differ from their defaults.
        limit_qps: The highest rate that could be sent on time.
        ended_s: When each probe ended, in seconds since the tuning began.
        resumed: Which probes are those of an earlier evaluation; empty for none.
        score_name: The name of the score with its unit; empty if the model was not evaluated.
        watts: The mean power of what is metered during each probe; 0 if it is unknown.
        metered: Whose power is read; empty for none.
    """

    kind: ClassVar[str] = "tuning"

    trials: tuple[Trial, ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)
    limit_qps: float = math.inf
    ended_s: Sequence[float] = ()
    resumed: str = ""
    score_name: str = ""
    watts: Sequence[float] = ()
    metered: str = ""

    @property
    def best(self) -> Trial | None:
        """The best configuration; None if there is none."""
        return next((each for each in self.trials if not each.stopped and each.rate_qps is not None), None)

    @property
    def batch_size(self) -> int:
        """The maximum number of queries in a batch of the best configuration."""
        return self.best.configuration.max_batch_size if self.best else self.options.max_batch_size

    @property
    def at_least(self) -> bool:
        """Whether the answer is only a lower bound, such as the highest rate that can be sent on time."""
        return self.answer is not None and self.answer.method == Method.AT_LEAST.value

    @property
    def objective(self) -> str:
        """What makes a configuration the best."""
        return str(self.asked.get("objective", RATE))

    @property
    def another(self) -> float | None:
        """An upper bound of the probability that another raced configuration is better than the best.

        It is the sum of the configurations' own probabilities (Boole's inequality); None if the time did not
        suffice to race them, or if the answer is only a lower bound, which several may reach, or is below the
        one that another reached in the race, or if another reached the limit of what could be sent.
        """
        best, limit_qps = self.best, NEARLY * self.limit_qps
        best_qps = self._merit(best) if best else math.inf
        above = any(
            (each.better is None and self._merit(each) > best_qps) or (each.rate_qps or 0.0) >= limit_qps
            for each in self.trials
            if each is not best
        )
        if above or self.at_least or any(each.stopped == OUT_OF_TIME for each in self.trials):
            return None
        return min(1.0, sum(each.better or 0.0 for each in self.trials))

    def _merit(self, trial: Trial) -> float:
        return (trial.rate_qps or 0.0) / (trial.cost(self.objective) or 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """A configuration's figure of merit in a round.

    Attributes:
        log: ln(rate in queries/s, or that per core or watt), or -ln(latency in ns): the higher, the better.
        blocks: float64: the influence on ln(rate) of each of ``BLOCKS`` blocks of a round's arrivals, or of
            each of ``SEQUENCES``; their sum is 0.
        resolution: The standard error of ``log`` that is left by the interpolation between two probes.
        certain: Whether ``log`` is bracketed, and no bound of it.
        costs: float64: by what the rate is divided, such as watts: one value, or one for each block.
        cost_step: By how much ln(cost) differs between the two probes of the bracket.
    """

    log: float
    blocks: Floats
    resolution: float = 0.0
    certain: bool = True
    costs: Floats = field(default_factory=lambda: np.ones(1))
    cost_step: float = 0.0

    @property
    def cost(self) -> float:
        """By what the rate is divided."""
        return float(self.costs.mean())

    @property
    def influences(self) -> Floats:
        """The influence of each block on ``log``: on that of the rate, less that on that of the mean cost."""
        return self.blocks - (self.costs - self.cost) / (len(self.costs) * self.cost)

    @property
    def log_half(self) -> float:
        """Half the width of the 95 % interval of ln(rate), by Student's t distribution."""
        return t_quantile_95(len(self.blocks) - 1) * _error(self.blocks, self.resolution)


def _error(blocks: Floats, *resolutions: float) -> float:
    count = len(blocks)
    return math.hypot(math.sqrt(count / (count - 1) * float((blocks**2).sum())), *resolutions)


def probability_better(one: Figure, best: Figure) -> float:
    """Returns the probability that ``one`` is better than ``best``, both of the same round.

    The difference D of the logs of the rates has an influence d_b = one_b - best_b from each block b of the
    B blocks of common arrivals, so that its variance is B / (B - 1) * sum(d_b²): the paired-t interval of two
    systems with common random numbers (Law, "Simulation Modeling and Analysis", 10.2), applied to a rate by
    the delta method. The probability is that of D > 0 in the normal approximation with a flat prior.
    The power has no blocks in a round: by how much it differs between both ends of a bracket is its error.
    """
    others = (one.resolution, best.resolution, one.cost_step, best.cost_step)
    error = _error(one.influences - best.influences, *others)
    return 0.5 * math.erfc((best.log - one.log) / max(error, 1e-9) / math.sqrt(2))


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """A probe: its rate, the late queries in each block, their log odds, and whether the bound was kept.

    The numbers of late queries are shares of all queries of the probe. For ``costs``, see ``Figure``.
    """

    rate_qps: float
    blocks: Floats
    logit: float
    kept: bool
    stopped: bool
    costs: Floats = field(default_factory=lambda: np.ones(1))

    def step(self, share: float, width: float, number: int, before: Figure | None) -> float:
        """Returns how far, in ln(rate), the next probe is beyond the rate where the bound is just kept."""
        step = abs(logit(share) - self.logit) / _SLOPE * (2 if self.stopped else 1)
        longest = (1 if self.stopped else 2) * width if before else _LONGEST_STEP  # about the rate is known
        step = min(max(step + width / 2, width) * 2.0**number, longest * (1 + number / 2))
        return step if self.kept else -step


def fitted(
    low: Probe | None, high: Probe | None, share: float, width: float, *, trusted: bool
) -> Figure | None:
    """Returns the rate at which the log odds of a late query, linear in ln(rate), are those allowed.

    Args:
        low: The probe with the highest rate that kept the bound.
        high: The one with the lowest rate that broke it.
        share: The share of late queries that is allowed.
        width: The width, in ln(rate), that stands for a bracket if one end is missing.
        trusted: Whether the log odds are those of many queries, so that they tell where the rate is between
            the probes.
    """
    slope, wanted, span, distance, cost_step = _SLOPE, logit(share), width, 0.5, 0.0
    if low and high:
        span = math.log(high.rate_qps / low.rate_qps)
        rise = max(high.logit - low.logit, 1e-9)
        slope = float(np.clip(rise / span, *_SLOPES))
        weight = float(np.clip((wanted - low.logit) / rise, 0.0, 1.0))
        log = math.log(low.rate_qps) + weight * span
        if trusted:  # but those of a probe that was stopped, or that had no late query, are bounds
            ends = [weight] if low.blocks.any() or high.stopped else []
            ends += [] if high.stopped else [1 - weight]
            distance = min(*ends, 0.5)
        parts = [_shares(each.blocks) for each in (low, high) if each.blocks.any() and not each.stopped]
        blocks = (1 - weight) * parts[0] + weight * parts[-1] if parts else _shares(high.blocks)
        costs = low.costs if high.stopped else (1 - weight) * low.costs + weight * high.costs
        cost_step = math.log(high.costs.mean() / low.costs.mean())
    elif probe := low or high:
        log, blocks, costs = math.log(probe.rate_qps), _shares(probe.blocks), probe.costs
        log += 0.0 if low else min((wanted - probe.logit) / slope, 0.0)
    else:
        return None
    influence = -(blocks - blocks.mean()) / ((1 - share) * slope)
    certain = bool(low and high)
    return Figure(log - math.log(costs.mean()), influence, distance * span / 2, certain, costs, cost_step)


def between(low: Probe, high: Probe, share: float) -> float:
    """Returns the rate of the next probe: about where the log odds of a late query are those allowed."""
    weight = (logit(share) - low.logit) / max(high.logit - low.logit, 1e-9)
    return float(low.rate_qps * (high.rate_qps / low.rate_qps) ** min(max(weight, 0.2), 0.8))


def _shares(blocks: Floats) -> Floats:
    return blocks / max(float(blocks.sum()), 1e-300)


def logit(share: float) -> float:
    """Returns the log odds of a share."""
    return math.log(share / (1 - share))
