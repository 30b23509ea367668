"""The measurement of generated answers, and its figures. ``docs/generation.md`` compares the definitions.

For a request that was due at d, whose chunks with content arrived at c₁ … cₖ, whose last byte arrived at e,
and which has n output tokens: TTFT is c₁ - d; TTFO the same for the first chunk of visible output; TPOT is
(cₖ - c₁)/(n - 1), one value a request; ICL are the gaps between its chunks; the whole answer takes e - d.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from inferometer.evaluators.kinds.generation.request import PROMPT_TOKENS, GenerationRequest
from inferometer.evaluators.kinds.load.measurement import Method, MixSearchMeasurement, RateAnswer
from inferometer.evaluators.load.queries import LoadRun, Outcome, Stop, bound_ns_of
from inferometer.evaluators.load.streams import UNKNOWN, Answer, ChunkKind, Streams
from inferometer.evaluators.load.validity import lag_in_percentiles
from inferometer.evaluators.statistics import (
    NEVER_NS,
    Interval,
    batches_for_interval,
    mean_interval,
    mean_reach,
    percentile,
    percentile_intervals,
    values_for_percentile,
)
from inferometer.evaluators.verdict import GOODPUT, THROUGHPUT, TOKENS, RunTimes, least_values

PERCENTS = (50, 90, 99)
COMPARED = ("ttft", "tpot", "e2e")
COMPARED_RATES = {TOKENS: "output_tokens", THROUGHPUT: "requests", GOODPUT: "goodput"}
BOUNDS = ("ttft_bound_ms", "tpot_bound_ms", "e2e_bound_ms")
_CONDITIONS = {"endpoint", "max_batch_size", "think_time_s", "duration_s", "max_queries", "prompt_tokens"}
_CONDITIONS |= {"prefix_share", "prefixes", "output_tokens", "ignore_eos", "temperature"}
_CONDITIONS |= {"timeout_ms", "warm_up_queries", *BOUNDS}
"""The options that are conditions of a comparison, besides those of the arrivals and the model."""
_PARTS = 10
_LEAST_EVENTS = 50
_LEAST_FOR_MEAN = 100  # in a queue, fewer leave the correlation of the requests unknown
_MOST_MS = 1e12
_NS_PER_S = 1_000_000_000
_Mask = NDArray[np.bool_]
_Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class GenerationMeasurement:
    """A run of requests whose answers were generated.

    Attributes:
        options: The options that differ from their defaults.
        run: When the requests were due, sent and done, and their outcomes.
        elapsed_ns: The duration of the run without the warm-up.
        tokens_by: Who counted the output tokens: the server, the engine in this process, a tokenizer, or
            empty for nobody.
        prompts: What the prompts are, in words.
        streams: The answers, in the order of the run's requests.
        scored: The lines of the file of prompts that were scored; see ``tasks.texts.scored``.
    """

    kind: ClassVar[str] = "generation"

    options: Mapping[str, Any]
    run: LoadRun
    elapsed_ns: int
    tokens_by: str = ""
    prompts: str = ""
    streams: Streams = field(default_factory=lambda: Streams.of((), (), 0))
    scored: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        for bound_ms in filter(None, map(self.options.get, BOUNDS)):
            if not 0 < bound_ms <= _MOST_MS:
                raise ValueError(f"its bound is {bound_ms} ms")

    @property
    def batch_size(self) -> int:
        """A request has one prompt."""
        return 1

    @classmethod
    def of(cls, run: LoadRun, answers: Sequence[Answer], planned: Sequence[int], **more: Any) -> Self:
        """Returns the measurement of a run, with its answers and the most tokens that each may have.

        A request whose whole answer turned out to be wrong has failed. The run is invalid if the lag of the
        sender could have changed the TTFT; see ``lag_in_percentiles``.
        """
        outcome = run.queries.outcome.copy()
        wrong = np.array([bool(each.error) for each in answers], bool) & (outcome == Outcome.ANSWERED)
        outcome[wrong] = Outcome.FAILED
        reasons = Counter(run.reasons) + Counter(answers[n].error for n in np.flatnonzero(wrong))
        queries = replace(run.queries, outcome=outcome)
        run = replace(run, queries=queries, reasons=dict(reasons.most_common()))
        found = cls(run=run, streams=Streams.of(answers, planned, run.began_ns), **more)
        if not len(queries.lag_ns) or not queries.lag_ns.any():  # a closed loop has none
            return found
        counted = int(np.count_nonzero(queries.scheduled_ns >= run.cut_ns))
        judged = max((p for p in PERCENTS if counted >= values_for_percentile(p)), default=PERCENTS[0])
        first_ns = found.streams.first_ns()
        begun = replace(queries, done_ns=np.where(first_ns == UNKNOWN, queries.done_ns, first_ns))
        lag = lag_in_percentiles(begun, run.cut_ns, judged, found.bound_ns("ttft_bound_ms"), _lag_text)
        return replace(found, run=replace(run, invalid=lag))

    @property
    def interrupted(self) -> bool:
        """Whether the run was stopped on request."""
        return self.run.stop is Stop.INTERRUPTED

    @property
    def answered(self) -> int:
        """The number of right answers."""
        return self.run.queries.count(Outcome.ANSWERED)

    def bound_ns(self, name: str) -> int | None:
        """Returns one of ``BOUNDS`` in nanoseconds; None if it was not given."""
        bound_ms = self.options.get(name)
        return None if bound_ms is None else bound_ns_of(bound_ms)


def _lag_text(change: str) -> str:
    lag = f"without the lag of this process, which sends requests late, the TTFT's {change}"
    return f"{lag}: stop other work on this machine, or lower the rate"


@dataclass(frozen=True, slots=True)
class Times:
    """The figures of one time over the requests, each in nanoseconds; None if there are too few requests.

    A percentile is infinite if it falls on requests without a right answer. The mean is over right answers.
    """

    count: int
    mean_ns: float | None = None
    mean_interval_ns: tuple[float, float | None] | None = None
    p50_ns: float | None = None
    p50_interval_ns: tuple[float, float | None] | None = None
    p90_ns: float | None = None
    p90_interval_ns: tuple[float, float | None] | None = None
    p99_ns: float | None = None
    p99_interval_ns: tuple[float, float | None] | None = None

    @classmethod
    def of(cls, values_ns: _Times, requests: int | None = None) -> Times:
        """Returns the figures of values that are in the order in which their requests were due.

        The values of one request are not independent of each other, so ``requests`` decides what is enough.
        The 10 batches whose spread gives the intervals are of consecutive requests, also if a request has
        many values; see ``percentile_interval`` and ``mean_interval``.

        Args:
            values_ns: int64; ``NEVER_NS`` for a request without a right answer.
            requests: How many requests they are of; None for one each.
        """
        requests = len(values_ns) if requests is None else requests
        known = values_ns[values_ns != NEVER_NS]
        found: dict[str, Any] = {"mean_ns": float(known.mean()) if len(known) else None}
        if requests >= _LEAST_FOR_MEAN and len(known) >= batches_for_interval(known):
            found["mean_interval_ns"] = tuple(mean_interval(known))
        for each in percentile_intervals(values_ns, PERCENTS):
            if requests >= values_for_percentile(each.percent):
                found[f"p{each.percent:g}_ns"] = each.value_ns
                ends = None if each.low_ns is None else (each.low_ns, each.high_ns)
                found[f"p{each.percent:g}_interval_ns"] = ends
        return cls(requests, **found)


@dataclass(frozen=True, slots=True)
class Rate:
    """Something per second within the steady window, and its 95 % interval."""

    per_s: float | None = None
    interval: Interval | None = None


def _judged_figures(name: str) -> cached_property[Times]:
    def figures(summary: GenerationSummary) -> Times:
        return Times.of(summary.judged_ns(name))

    return cached_property(figures)


class GenerationSummary:
    """The figures of a measurement, over the requests that were due after the empty start.

    After a stop on request, nobody knows which of the last requests would have been answered: none is counted
    that was due less than the longest answer before the stop.

    The steady window begins when the requests of the empty start have been answered, because the server has
    fewer requests until then, and ends when the last request was due.

    Attributes:
        streams: The answers.
        answered: bool, n; whether each request has a right answer.
        early: bool, n; whether it was due in the empty start.
        cut_off: bool, n; whether a stop on request came sooner after it was due than the longest answer took.
        counted: bool, n; whether it is neither of them.
        ttft_ns: int64, n; the time to its first chunk with content; ``UNKNOWN`` without one.
        ttfo_ns: int64, n; the time to its first chunk of visible output, after any reasoning.
        tpot_ns: int64, n; its time per output token; ``UNKNOWN`` with fewer than two tokens or chunks.
        e2e_ns: int64, n; the time of the whole answer.
        kept: bool, n; whether its answer kept every bound; None without a bound, or if one cannot be judged.
        ttft, ttfo, e2e, tpot: The figures of these times; see ``judged_ns``.
    """

    def __init__(self, measured: GenerationMeasurement) -> None:
        self._measured = measured
        self.streams, queries = measured.streams, measured.run.queries
        self._due_ns: _Times = queries.scheduled_ns
        self.answered: _Mask = queries.outcome == Outcome.ANSWERED
        self.early: _Mask = self._due_ns < measured.run.cut_ns
        first_ns, tokens = self.streams.first_ns(), self.streams.output_tokens
        self.ttft_ns = self._since_due(first_ns)
        self.ttfo_ns = self._since_due(self.streams.first_ns(ChunkKind.TEXT))
        self.e2e_ns = self._since_due(self.streams.last_byte_ns)
        per_token = np.rint((self.streams.last_ns() - first_ns) / np.maximum(tokens - 1, 1)).astype(np.int64)
        self.cut_off: _Mask = self._due_ns > self._known_until_ns()
        self.counted: _Mask = ~(self.early | self.cut_off)
        self.tpot_ns: _Times = np.where((tokens > 1) & (self.streams.chunk_count > 1), per_token, UNKNOWN)
        self.kept = self._kept()

    def _since_due(self, times_ns: _Times) -> _Times:
        found: _Times = np.where(times_ns == UNKNOWN, UNKNOWN, times_ns - self._due_ns)
        return found

    def _known_until_ns(self) -> int:
        """Returns until when the requests were due whose outcome a stop on request did not decide."""
        if not (self._measured.interrupted and self.answered.any()):
            return NEVER_NS
        stop_ns = max(int(self._due_ns[-1]), int(self.streams.last_byte_ns.max()))
        return stop_ns - int(self.e2e_ns[self.answered].max())

    def _kept(self) -> _Mask | None:
        limits = {name: self._measured.bound_ns(f"{name}_bound_ms") for name in COMPARED}
        if not any(limits.values()) or (limits["tpot"] and not self._measured.tokens_by):
            return None
        kept: _Mask = self.answered & (self.ttft_ns != UNKNOWN)
        for name, limit_ns in limits.items():
            if limit_ns is not None:
                kept = kept & (getattr(self, f"{name}_ns") <= limit_ns)  # an answer of one token has no TPOT
        return kept

    def right_ns(self, name: str) -> _Times:
        """Returns a time of the counted right answers that have it; ``name`` is ``ttft`` or another one."""
        values_ns: _Times = getattr(self, f"{name}_ns")
        found: _Times = values_ns[self.counted & self.answered & (values_ns != UNKNOWN)]
        return found

    def judged_ns(self, name: str) -> _Times:
        """Returns a time of counted requests, ``NEVER_NS`` for no right answer; TPOT has right ones alone."""
        if name == "tpot":
            return self.right_ns(name)
        values_ns = getattr(self, f"{name}_ns")
        chosen = self.counted & ~(self.answered & (values_ns == UNKNOWN))
        found: _Times = np.where(self.answered, values_ns, NEVER_NS)[chosen]
        return found

    def run_times(self, name: str) -> RunTimes:
        """Returns one of ``COMPARED``; raises ValueError if there is none; see ``Kind.run_times``."""
        if name not in COMPARED or not len(values_ns := self.judged_ns(name)):
            raise ValueError(name or "such rate")
        return RunTimes.of_batches(values_ns, np.ones_like(values_ns))

    @property
    def rates(self) -> Mapping[str, RateAnswer]:
        """Those of ``COMPARED_RATES`` that are known."""
        found: dict[str, Rate] = {name: getattr(self, of) for name, of in COMPARED_RATES.items()}
        return {
            name: RateAnswer(rate.per_s, low, high, Method.COUNTED.value)
            for name, rate in found.items()
            for low, high in [rate.interval or (None, None)]
            if rate.per_s is not None
        }

    ttft, ttfo, e2e, tpot = map(_judged_figures, ("ttft", "ttfo", "e2e", "tpot"))

    @cached_property
    def icl(self) -> Times:
        """The gaps between the chunks of right answers."""
        chosen = self.counted & self.answered & (self.streams.chunk_count > 1)
        return Times.of(self.streams.gaps_ns(chosen), int(np.count_nonzero(chosen)))

    @cached_property
    def lag(self) -> Times:
        """How long after they were due the counted requests were sent."""
        return Times.of(self._measured.run.queries.chosen(self.counted).lag_ns)

    def run_of(self, name: str) -> LoadRun:
        """Returns the run with one of ``BOUNDED`` as the latency of each request, as its bound judges it.

        The empty start is left out. A request that fails, or whose answer has no content, is later than any
        bound. TPOT has no lag; a right answer without TPOT is left out, and so is one that a stop cut off.
        """
        run, times_ns, kept = self._measured.run, getattr(self, f"{name.lower()}_ns"), ~self.early
        queries, known, waiting = run.queries, times_ns != UNKNOWN, run.queries.outcome == Outcome.WAITING
        outcome = np.where(self.answered & (self.ttft_ns == UNKNOWN), Outcome.FAILED, queries.outcome)
        if name == "TTFT":
            outcome[waiting & known] = Outcome.ANSWERED
        elif name == "TPOT":
            kept &= ~waiting & (known | (outcome != Outcome.ANSWERED))
            queries = replace(queries, sent_ns=np.where(queries.sent_ns < 0, -1, self._due_ns))
        done_ns = np.where(outcome == Outcome.ANSWERED, self._due_ns + times_ns, queries.done_ns)
        queries = replace(queries, outcome=outcome, done_ns=done_ns).chosen(kept)
        return replace(run, queries=queries, cut_ns=0, invalid="")

    @property
    def kept_share(self) -> float | None:
        """The share of the counted requests that kept every bound."""
        counted = np.count_nonzero(self.counted)
        kept = None if self.kept is None else np.count_nonzero(self.kept & self.counted)
        return float(kept / counted) if kept is not None and counted else None

    @cached_property
    def requests(self) -> Rate:
        """Right answers per second."""
        return self._rate(self.answered)

    @cached_property
    def goodput(self) -> Rate:
        """Right answers per second that kept every bound."""
        return Rate() if self.kept is None else self._rate(self.kept)

    @cached_property
    def output_tokens(self) -> Rate:
        """Output tokens per second."""
        return self._rate(self._tokens) if self._measured.tokens_by else Rate()

    @property
    def _tokens(self) -> _Times:
        """int64, n; the output tokens of right answers, as far as known; 0 for others."""
        found: _Times = np.where(self.answered, np.maximum(self.streams.output_tokens, 0), 0)
        return found

    @property
    def whole_tokens_per_s(self) -> float | None:
        """All output tokens over the time from when the first request was due to the last byte."""
        if not self._measured.tokens_by or not self.answered.any():
            return None
        span_ns = int(self.streams.last_byte_ns[self.answered].max()) - int(self._due_ns[0])
        return float(self._tokens.sum()) * _NS_PER_S / span_ns if span_ns > 0 else None

    def _rate(self, amounts: NDArray[Any]) -> Rate:
        """Returns the rate in the steady window of what each request adds; ten parts of it give the interval.

        The amount of a request is spread evenly over its chunks, because answers that end together, as those
        of a closed loop do, would make a rate depend on whether they end just before or just after an edge.
        If answers take longer than a part, the parts are alike, and there is no interval.
        """
        begin_ns, end_ns = self._steady_ns
        if begin_ns >= end_ns:
            return Rate()
        streams, bare = self.streams, self.streams.chunk_count == 0  # a right answer without content
        times_ns = np.concatenate([streams.chunk_ns, streams.last_byte_ns[bare]])
        spread = (amounts / np.maximum(streams.chunk_count, 1))[streams.request]
        weights = np.concatenate([spread, amounts[bare]])
        counts, edges = np.histogram(times_ns, _PARTS, (float(begin_ns), float(end_ns)), weights=weights)
        rates = counts * _NS_PER_S / np.diff(edges)
        # an answer spread over a share of a part takes a third of it from the variance of the parts
        over_ns = (streams.last_ns() - streams.first_ns())[self.counted & self.answered]
        rate = float(rates.mean())
        if len(over_ns) < _LEAST_EVENTS or (share := over_ns.mean() / np.diff(edges)[0]) > 1:
            return Rate(rate)
        reach = mean_reach(rates) / math.sqrt(1 - float(share) / 3)
        return Rate(rate, Interval(max(rate - reach, 0.0), rate + reach))

    @property
    def _steady_ns(self) -> tuple[int, int]:
        """From the end of the answers of the empty start until the last request was due."""
        if not self.counted.any():
            return 0, 0
        due_ns = self._due_ns[self.counted]
        before_ns = self.streams.last_byte_ns[self.answered & self.early]
        return max(int(due_ns[0]), int(before_ns.max(initial=-1)) + 1), int(due_ns[-1])

    def tokens(self, name: str) -> dict[str, float | None]:
        """Returns the mean and ``PERCENTS`` of ``input_tokens`` and others over the right answers that tell.

        They are by name: ``input_tokens``, ``input_tokens_p50`` and so on; None if no answer tells.
        """
        values = getattr(self.streams, name)[self.counted & self.answered]
        known = values[values != UNKNOWN]
        found = {name: float(known.mean()) if len(known) else None}
        return found | {f"{name}_p{p}": percentile(known, p) if len(known) else None for p in PERCENTS}

    @property
    def knew_prompts(self) -> bool:
        """Whether the server had most of what synthetic prompts do not share in its cache."""
        told = self.counted & self.answered & (self.streams.cached_tokens != UNKNOWN)
        told &= self.streams.input_tokens != UNKNOWN
        own = (1 - self._measured.options.get("prefix_share", 0.0)) * self.streams.input_tokens
        known = told & (self.streams.input_tokens - self.streams.cached_tokens < own / 2)
        is_synthetic = not {"prompts", "replay"} & set(self._measured.options)
        return is_synthetic and np.count_nonzero(known) > np.count_nonzero(told) / 2

    @property
    def shorter(self) -> int | None:
        """How many counted right answers have fewer tokens than planned; None if nobody counts them."""
        less = (self._tokens > 0) & (self._tokens < self.streams.planned_tokens)
        return int(np.count_nonzero(self.counted & less)) if self._measured.tokens_by else None

    @property
    def untold(self) -> int:
        """How many right answers have an unknown number of tokens, which no rate of tokens has."""
        return int(np.count_nonzero(self.answered & (self.streams.output_tokens == UNKNOWN)))

    @property
    def without_content(self) -> int:
        """How many counted right answers have no content, and so no TTFT."""
        return int(np.count_nonzero(self.counted & self.answered & (self.ttft_ns == UNKNOWN)))

    @cached_property
    def outcomes(self) -> Mapping[str, int]:
        """The number of counted requests with each outcome."""
        found = self._measured.run.queries.outcome[self.counted]
        known = [each for each in Outcome if each is not Outcome.UNSENT]
        return {each.name.lower(): int(np.count_nonzero(found == each)) for each in known}


def conditions_of(given: Mapping[str, Any]) -> dict[str, str]:
    """Returns the options of the requests as conditions, those that were not given with their defaults."""
    given = {"prompt_tokens": PROMPT_TOKENS, **given}
    asked = [(each.name, given.get(each.name, each.default)) for each in fields(GenerationRequest)]
    named = [(re.sub("_(m?s)$", r" (\1)", name), value) for name, value in asked if name in _CONDITIONS]
    return {name.replace("_", " "): str(value).lower() for name, value in named}


def compared_figures(*sides: Sequence[GenerationMeasurement]) -> tuple[str, ...]:
    """Returns p50 and the highest percentile of enough requests of each time, and the known rates."""
    summaries, found = [list(map(GenerationSummary, side)) for side in sides], list[str]()
    for name in COMPARED:
        counts = [[len(each.judged_ns(name)) for each in side] for side in summaries]
        figures, least = [f"{name}_p{p}" for p in PERCENTS], min(map(sum, counts))
        enough = [each for each in figures if least_values(each, min(map(len, sides))) <= least]
        found += dict.fromkeys((figures[0], *enough[-1:])) if all(map(all, counts)) else ()
    known = set.intersection(*(set(each.rates) for side in summaries for each in side))
    if len({tuple(map(each.options.get, BOUNDS)) for side in sides for each in side}) > 1:
        known -= {GOODPUT}
    return (*found, *(name for name in COMPARED_RATES if name in known))


@dataclass(frozen=True, slots=True, eq=False)
class GenerationSearchMeasurement(MixSearchMeasurement):
    """One bound of a search for the highest rate of requests that keeps several bounds.

    As for a mix, in which each bound takes the place of a model: ``name`` is the time that is bounded, and
    the latency of each request of ``probes`` is this time; see ``GenerationSummary.run_of``. ``answer`` is
    the highest rate that keeps all bounds, ``own`` that for this bound alone, ``limited_by`` the time whose
    bound is reached first, and ``mix`` has the options of the request.
    """

    kind: ClassVar[str] = "generation_search"

    @property
    def headline(self) -> tuple[str, str, RateAnswer | None]:
        """See ``RateSearchMeasurement``."""
        return self.name, f"{self.name}: max QPS", self.answer
