"""The kind of measurement for generated answers, with its report, its picture and its documents."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeAlias

import numpy as np

from inferometer.evaluators.documents import Documents, Part, Stored, checked, restored, storable
from inferometer.evaluators.drawing import charts
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.generation.measurement import (
    PERCENTS,
    GenerationMeasurement,
    GenerationSearchMeasurement,
    GenerationSummary,
    Rate,
    compared_figures,
    conditions_of,
)
from inferometer.evaluators.kinds.generation.request import GenerationRequest, GenerationSearchRequest
from inferometer.evaluators.kinds.kind import Again, Rows, apart, own_values, top_figures
from inferometer.evaluators.kinds.load.documents import RunsKind
from inferometer.evaluators.kinds.load.kind import CHANGES_WITH_TIME, RateSearchKind, again_of
from inferometer.evaluators.kinds.load.plot import MaxQpsPlot, clock_range, empty_start, server_charts
from inferometer.evaluators.kinds.load.report import MaxQpsReport, answer_columns
from inferometer.evaluators.reports.base import (
    CONDITIONS_COLUMN,
    EVALUATION_COLUMNS,
    INVALID_COLUMN,
    STATUS_COLUMN,
    VERDICT_COLUMN,
    Column,
    Report,
    Row,
    Summarized,
    describe,
    describe_verdict,
    end_columns,
    known,
    ms,
    row_of,
    time_columns,
)
from inferometer.evaluators.tasks.texts import score_rows, scores_of

GenerationEvaluation: TypeAlias = Evaluation[GenerationMeasurement]
_FIGURES = ("mean", "p50", "p90", "p99")
_TIMES: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "ttft": ("TTFT", {"mean": 1, "p50": 0, "p90": 1, "p99": 0}),
    "tpot": ("TPOT", {"mean": 1, "p50": 0, "p90": 1, "p99": 0}),
    "icl": ("ICL", {"mean": 2, "p50": 2, "p90": 2, "p99": 1}),
    "e2e": ("whole answer", {"mean": 2, "p50": 0, "p90": 2, "p99": 1}),
    "ttfo": ("TTFO", {"mean": 3, "p50": 3, "p90": 3, "p99": 3}),
}
"""The times of an answer, each with its heading and the detail of its figures."""
_RATES = {"requests": "requests/s", "output_tokens": "output tokens/s", "goodput": "goodput (requests/s)"}
_TOKENS = ("input_tokens", "output_tokens", "planned_tokens", "cached_tokens")
_MOST_POINTS, _MOST_CHUNKS = 500, 5_000
_ROWS = 5_000
_SHOWN = ("id", "created_at", "model_name", "framework_name")
_OUTCOMES = ("answered", "failed", "timed_out", "waiting")
_Summarized: TypeAlias = Summarized[GenerationMeasurement, GenerationSummary]


def _user_tokens_per_s(of: _Summarized) -> float | None:
    tpot_ns = of.summary.tpot.p50_ns
    return 1e9 / tpot_ns if tpot_ns else None


def _scores(of: _Summarized) -> str | None:
    return ", ".join(f"{name} {text}" for name, text in score_rows(of.measured.scored)) or None


_GENERATION: tuple[Column[_Summarized], ...] = (
    Column("arrival", "arrival", detail=2, value="measured.run.source"),
    Column("rate_qps", "asked for (requests/s)", 2, 1, value=known("measured.run.rate_qps")),
    *(
        column
        for name, heading in _RATES.items()
        for column in (
            Column(f"{name}_per_s", heading, decimals=2, value=f"summary.{name}.per_s"),
            *end_columns(f"{name}_per_s", heading, f"summary.{name}.interval", decimals=2),
        )
    ),
    Column(
        "whole_tokens_per_s", "output tokens/s of the whole run", 2, 2, value="summary.whole_tokens_per_s"
    ),
    Column("user_tokens_per_s", "tokens/s of a user", decimals=2, detail=1, value=_user_tokens_per_s),
    Column("kept_share", "kept the bounds (share)", decimals=4, detail=1, value="summary.kept_share"),
    *(
        column
        for name, (heading, details) in _TIMES.items()
        for column in time_columns(f"{name}_ms", heading, f"summary.{name}", details, _FIGURES)
    ),
    *(
        Column(f"{name}{figure}", f"{name} {figure[1:]}".replace("_", " ").strip(), decimals=1, detail=detail)
        for figure, details in (("", (1, 1, 2, 2)), *((f"_p{p}", (3,) * 4) for p in PERCENTS))
        for name, detail in zip(_TOKENS, details, strict=True)
    ),
    Column("shorter_answers", "shorter than planned", detail=2, value="summary.shorter"),
    Column("tokens_by", "tokens counted by", detail=2, value=known("measured.tokens_by")),
    Column("lag_ms_p99", "lag p99 (ms)", detail=2, value=ms("summary.lag.p99_ns")),
    Column("requests", "requests", detail=1, value=lambda of: int(np.count_nonzero(of.summary.counted))),
    *(Column(name, name.replace("_", " "), detail=2, value=f"summary.outcomes.{name}") for name in _OUTCOMES),
    Column("prompts", "prompts", detail=3, value="measured.prompts"),
    Column("scores", "scores", detail=2, value=_scores),
    Column("stopped", "stopped", wraps=True, value=known("measured.run.stopped")),
)


class GenerationReport(Report[GenerationMeasurement]):
    """One row for each run; the figures are those of ``GenerationSummary``.

    TTFT is the time to the first chunk with content, since the request was due; TPOT the time per output
    token after the first; ICL the gap between chunks; TTFO the time to the first visible output. A percentile
    that falls on requests without a right answer is infinite, and one of too few requests empty.
    """

    name = "generation"
    summary = "generated answers: time to first token, time per token, tokens in a second, goodput"
    takes = (GenerationMeasurement,)
    columns = (
        *(column for column in EVALUATION_COLUMNS if column.key in _SHOWN),
        VERDICT_COLUMN,
        *_GENERATION,
        INVALID_COLUMN,
        STATUS_COLUMN,
        CONDITIONS_COLUMN,
    )

    def rows(self, evaluations: Sequence[GenerationEvaluation]) -> Iterator[Row]:
        """Yields one row for each evaluation."""
        for evaluation in evaluations:
            summary, described = GenerationSummary(evaluation.measurement), describe(evaluation)
            yield {
                **{key: described[key] for key in (*_SHOWN, "status", "conditions")},
                **describe_verdict(evaluation, evaluation.measurement.run.invalid),
                **row_of(_GENERATION, Summarized(evaluation, summary)),
                **{key: value for name in _TOKENS for key, value in summary.tokens(name).items()},
            }


_COMMON = len(EVALUATION_COLUMNS) + 1
_SEARCH: tuple[Column[GenerationSearchMeasurement], ...] = (
    Column("bounded", "bounded", stays=True, value="name"),
    Column("limited_by", "limited by", stays=True, value=known("limited_by")),
    *answer_columns("own_max_qps", "own max QPS", "own", decimals=2),
)


class GenerationSearchReport(Report[GenerationSearchMeasurement]):
    """One row for each bound of each search.

    ``max_qps`` keeps all bounds, and ``own_max_qps`` that of the row. Other columns are those of
    ``MaxQpsReport``.
    """

    name = "generation_search"
    summary = "the highest rate of requests that keeps bounds on TTFT, TPOT and e2e, with its 95 % interval"
    takes = (GenerationSearchMeasurement,)
    columns = (*MaxQpsReport.columns[:_COMMON], *_SEARCH, *MaxQpsReport.columns[_COMMON:])

    def rows(self, evaluations: Sequence[Evaluation[GenerationSearchMeasurement]]) -> Iterator[Row]:
        """Yields one row for each evaluation, which has one bound."""
        for evaluation, row in zip(evaluations, MaxQpsReport().rows(evaluations), strict=True):
            yield {**row, **row_of(_SEARCH, evaluation.measurement)}


class GenerationPlot(charts.Plot[GenerationMeasurement]):
    """The distributions of TTFT and TPOT with their bounds, and more.

    Of one evaluation, also when its requests were due and what arrived when, over the series of the server.
    Of several, also the output tokens/s of a user against those in all.
    """

    def drawing(
        self, chosen: charts.Chosen[GenerationMeasurement], notes: Sequence[str]
    ) -> charts.Drawing | None:
        """Returns the charts."""
        evaluations = [evaluation for evaluation, _ in chosen if len(evaluation.measurement.run.queries)]
        found = [] if len(evaluations) < 2 else list(_tokens_charts(chosen))
        found += [chart for name in ("ttft", "tpot") for chart in _distributions(name, evaluations)]
        if len(evaluations) == 1:
            found += [
                *_timeline(evaluations[0]),
                *server_charts(evaluations[0], evaluations[0].measurement.run),
            ]
        groups = tuple(dict.fromkeys(series.group for chart in found for series in chart.series))
        told = ("TTFT: requests without a right answer never have one. TPOT: right answers.", *notes)
        title = "Time to first token and per token"
        return charts.Drawing(title, tuple(found), groups, told) if found else None


def _load_of(evaluation: GenerationEvaluation) -> str:
    run = evaluation.measurement.run
    return run.source + (f" at {run.rate_qps:g} requests/s" if run.rate_qps else "")


def _named(evaluation: GenerationEvaluation) -> str:
    return f"{evaluation.system.manifest.name}, {_load_of(evaluation)}"


def _warning(evaluations: Sequence[GenerationEvaluation]) -> str:
    reasons = [each.measurement.run.invalid for each in evaluations]
    return "; ".join(f"INVALID: {reason}" for reason in reasons if reason)


def _distributions(name: str, evaluations: Sequence[GenerationEvaluation]) -> Iterator[charts.PointChart]:
    """Yields the chart of a time, with a curve for each evaluation that has it."""
    heading, found, bounds = _TIMES[name][0], list[charts.Series](), dict[float, None]()
    for evaluation in evaluations:
        measured, summary = evaluation.measurement, GenerationSummary(evaluation.measurement)
        values_ns, bound_ns = summary.right_ns(name), measured.bound_ns(f"{name}_bound_ms")
        if not len(values_ns):
            continue
        x = np.sort(values_ns) / 1e6
        y = np.arange(1, len(x) + 1) / getattr(summary, name).count  # below 1 if some never had it
        kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST_POINTS)).astype(int))
        bounds |= {} if bound_ns is None else {bound_ns / 1e6: None}
        group = heading if len(evaluations) == 1 else _named(evaluation)
        tooltip = f"{evaluation.id}: {heading} of {len(values_ns):,} requests, {_named(evaluation)}"
        points = tuple(x[kept].tolist()), tuple(y[kept].tolist())
        found.append(charts.Series(group, *points, line=True, tooltip=tooltip))
    if found:
        label = charts.Label(heading, warning=_warning(evaluations))
        if len(evaluations) == 1:
            label = charts.label_of(evaluations[0], _load_of(evaluations[0]), warning=label.warning)
        rules = tuple(charts.Rule(each, f"bound {each:g} ms", upright=True) for each in bounds)
        yield charts.PointChart(label, f"{heading} (ms)", "share of requests", tuple(found), rules)


def _tokens_charts(chosen: charts.Chosen[GenerationMeasurement]) -> Iterator[charts.PointChart]:
    """Yields the output tokens/s in all against those of a user, as far as both are known."""
    found, curves = list[charts.Series](), dict[str, list[tuple[float, float]]]()
    for evaluation, [row] in chosen:
        point = (charts.number(row["user_tokens_per_s"]), charts.number(row["output_tokens_per_s"]))
        if all(point):
            manifest = evaluation.system.manifest
            curves.setdefault(f"{manifest.name}, {manifest.framework.name}", []).append(point)
            tooltip = f"{evaluation.id}: {point[0]:.4g} tokens/s of a user, {point[1]:.4g} in all"
            single = charts.Series(_named(evaluation), point[:1], point[1:], tooltip=tooltip, size=6.0)
            found.append(replace(single, text=_load_of(evaluation)))
    if len(found) > 1:
        lines = []
        for name, points in curves.items():
            x, y = zip(*sorted(points), strict=True)
            lines.append(charts.Series(name, x, y, line=True, size=1.0))
        axes = "output tokens/s of a user (1 / p50 of TPOT)", "output tokens/s in all"
        label = charts.Label("Tokens/s of a user and in all", warning=_warning([each for each, _ in chosen]))
        yield charts.PointChart(label, *axes, (*lines, *found), tall=True)


def _timeline(evaluation: GenerationEvaluation) -> Iterator[charts.PointChart]:
    """Yields the requests over time, each at its number: when it was due, and when its chunks arrived."""
    run, streams = evaluation.measurement.run, evaluation.measurement.streams
    queries, first_ns = run.queries, streams.first_ns()
    shown = np.unique(np.linspace(0, len(queries) - 1, min(len(queries), _MOST_POINTS)).astype(int))
    chunks = np.flatnonzero(np.isin(streams.request, shown))[:: 1 + len(streams.chunk_ns) // _MOST_CHUNKS]
    answered = GenerationSummary(evaluation.measurement).answered
    begun, wrong = shown[first_ns[shown] >= 0], shown[~answered[shown]]
    ended_ns = np.maximum(queries.done_ns, queries.scheduled_ns)
    groups = {
        "chunk": (streams.request[chunks], streams.chunk_ns[chunks], charts.Mark.DOT, 1.0),
        "due": (shown, queries.scheduled_ns[shown], charts.Mark.RING, 2.5),
        "first token": (begun, first_ns[begun], charts.Mark.DOT, 3.0),
        "no right answer": (wrong, ended_ns[wrong], charts.Mark.CROSS, 4.0),
    }
    series = (
        charts.Series(
            group,
            tuple((times_ns / 1e9).tolist()),
            tuple((1.0 + numbers).tolist()),
            tooltip=f"{evaluation.id}: {group}, {len(numbers):,} shown",
            mark=mark,
            size=size,
        )
        for group, (numbers, times_ns, mark, size) in groups.items()
        if len(numbers)
    )
    yield charts.PointChart(
        charts.Label("The requests during this run", warning=_warning([evaluation])),
        "s since the run began",
        "request",
        tuple(series),
        bands=empty_start(run),
        tall=True,
        x_range=clock_range(run),
    )


class GenerationKind(RunsKind[GenerationMeasurement]):
    """Measure a language model: time to the first token, time per token, tokens per second, goodput.

    Requests go to a model in this process or, with --agent, to a server of OpenAI's protocol, at a rate or in
    a closed loop. Answers arrive as streams, and every piece is stamped on arrival. Latency counts from when
    a request was due, and tokens are those that the model or the server counts, not chunks.
    """

    name = "generation"
    title = "generation"
    phrase = "a measurement of generated answers"
    counted = "requests"
    collections = ("load_query", "generation_answer", "generation_score")
    reports = {GenerationReport: GenerationPlot}
    headlines = ("ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "output_tokens_per_s", "goodput_per_s")
    of_a_model = False
    request = GenerationRequest
    measurement = GenerationMeasurement
    readers = {"options": restored}

    def job(self, request: GenerationRequest) -> Any:
        """Returns the job of a request."""
        from inferometer.evaluators.kinds.generation.job import generation_job  # which help does not need

        return generation_job(request)

    def to_documents(self, evaluation: GenerationEvaluation, save_id: str) -> Documents:
        """Returns the measurement's fields, with its requests in ``load_query`` and its answers apart."""
        document, parts = super().to_documents(evaluation, save_id)
        answers = [storable(part) for part in evaluation.measurement.streams.parts()]
        rows = evaluation.measurement.scored
        scores = [{"rows": storable(rows[at : at + _ROWS])} for at in range(0, len(rows), _ROWS)]
        own = {"generation_answer": answers, "generation_score": scores}
        return document, {**parts, **{name: Part(len(each), each) for name, each in own.items()}}

    def from_documents(self, head: Stored, parts: Mapping[str, Sequence[Stored]]) -> GenerationMeasurement:
        """Returns the measurement; raises KeyError, TypeError or ValueError if the documents are damaged."""
        found = super().from_documents(head, parts)
        streams = found.streams.joined(list(map(restored, parts["generation_answer"])))
        if len(streams) != len(found.run.queries):
            raise ValueError(f"{len(streams)} of its {len(found.run.queries)} answers are present")
        scored = [row for part in parts.get("generation_score", ()) for row in restored(part["rows"])]
        return checked(replace(found, streams=streams, scored=scored))

    def _names(self) -> list[str]:
        return [name for name in super()._names() if name not in {"streams", "scored"}]

    def measured(self, measurement: GenerationMeasurement) -> str:
        return f"{len(measurement.run.queries)} requests"

    def unanswered(self, measurement: GenerationMeasurement) -> str:
        return next(iter(measurement.run.reasons), "no request was answered")

    def overview(self, measurement: GenerationMeasurement) -> Row:
        summary = GenerationSummary(measurement)
        return top_figures(summary.e2e.p50_ns, summary.requests.per_s)

    def summary(self, evaluation: GenerationEvaluation) -> Rows:
        measured, summary = evaluation.measurement, GenerationSummary(evaluation.measurement)
        run = measured.run
        if run.invalid:
            yield "INVALID", run.invalid
        if run.stopped:
            yield "stopped", run.stopped
        outcomes = ", ".join(f"{count} {name}" for name, count in summary.outcomes.items() if count)
        empty = f", after {np.count_nonzero(summary.early)} of the empty start" if run.cut_ns else ""
        last = f", before {np.count_nonzero(summary.cut_off)} that the stop cut off" * measured.interrupted
        yield "requests", f"{np.count_nonzero(summary.counted)} ({outcomes or 'none'}){empty}{last}"
        for reason, count in run.reasons.items():
            yield "", f"{count} failed: {reason}"
        if summary.without_content:
            yield "", f"answers without content, and so without TTFT: {summary.without_content}"
        yield "rate", _rate_text(summary.requests, "requests/s")
        yield "tokens", _tokens_text(measured, summary)
        if summary.knew_prompts:
            yield "", "the server had most of each prompt in its cache, maybe from a run with the same --seed"
        if measured.tokens_by and summary.untold:
            yield "", f"answers whose tokens are not known, and not in the tokens/s: {summary.untold}"
        for name in _TOKENS:
            mean, *percentiles = summary.tokens(name).values()
            if len({mean, *percentiles}) > 1:
                shown = zip(PERCENTS, percentiles, strict=True)
                yield "", f"{name.replace('_', ' ')}: " + "  ".join(f"p{p} {each:.0f}" for p, each in shown)
        if summary.output_tokens.per_s is not None:
            yield "", _rate_text(summary.output_tokens, "output tokens/s")
        elif summary.whole_tokens_per_s is not None:
            yield "", f"{summary.whole_tokens_per_s:.2f} output tokens/s of the whole run"
        reasons = bool((summary.ttfo_ns != summary.ttft_ns).any())
        yield from _time_rows(summary, {n: h for n, (h, _) in _TIMES.items() if n != "ttfo" or reasons})
        if summary.icl.p50_ns == 0:
            yield "", "most chunks arrived in one piece with the one before: something held them back"
        if not measured.tokens_by:
            yield "TPOT", "not known: nobody counts the tokens; give --tokenizer"
        if summary.kept is not None:
            share = f", {100 * (summary.kept_share or 0):.1f} % kept every bound"
            yield "goodput", f"{_rate_text(summary.goodput, 'requests/s')}{share}"
        elif measured.bound_ns("tpot_bound_ms"):
            yield "goodput", "not known: TPOT is not"
        yield from score_rows(measured.scored)
        if run.queries.lag_ns.any():  # else, each was due when it was sent
            yield from _time_rows(summary, {"lag": "lag"})

    def description(self, evaluation: GenerationEvaluation) -> Rows:
        run = evaluation.measurement.run
        rate = f" at {run.rate_qps:g} requests/s" if run.rate_qps else ""
        yield "prompts", evaluation.measurement.prompts
        yield "load", f"{run.source}{rate}" + (f", seed {run.seed}" if run.seed is not None else "")
        if run.checksum:
            yield "", f"schedule {run.checksum}"

    def conditions(self, evaluation: GenerationEvaluation) -> Mapping[str, str]:
        """Returns the options, the load that was sent, and who counted the tokens."""
        measured, run = evaluation.measurement, evaluation.measurement.run
        found = conditions_of(measured.options) | {"tokens counted by": measured.tokens_by or "nobody"}
        load = f"trace {run.checksum[:19]}" if "replay" in measured.options and run.checksum else run.source
        load += f" at {run.rate_qps:g} requests/s" if run.rate_qps else ""
        if load.partition(":")[0] in CHANGES_WITH_TIME:
            load += f" (duration {found['duration (s)']} s, max queries {found['max queries']})"
        return found | {"load": load}

    def named_times(self, evaluation: GenerationEvaluation, name: str) -> Any:
        return GenerationSummary(evaluation.measurement).run_times(name)

    def rates(self, measurement: GenerationMeasurement) -> Mapping[str, Any]:
        return GenerationSummary(measurement).rates

    def figures(self, *sides: Sequence[GenerationMeasurement]) -> tuple[str, ...]:
        return compared_figures(*sides)

    def drawings(self, evaluation: GenerationEvaluation, most_points: int) -> Iterator[charts.Drawing]:
        for each in super().drawings(evaluation, most_points):
            yield from apart(each)

    def group_drawing(self, evaluations: Sequence[GenerationEvaluation]) -> charts.Drawing | None:
        rows = ([row] for row in GenerationReport().rows(evaluations))
        found = tuple(_tokens_charts(list(zip(evaluations, rows, strict=True))))
        return charts.Drawing("All runs of the group", found, (), ()) if found else None

    def document(self, evaluation: GenerationEvaluation, *_: object) -> dict[str, Any]:
        [row], measured = GenerationReport().rows([evaluation]), evaluation.measurement
        finish = [each for each in measured.streams.finish if each]
        figures = {
            **own_values(GenerationReport(), row),
            "options": dict(measured.options),
            "failure_reasons": dict(measured.run.reasons),
            "finish_reasons": {each: finish.count(each) for each in sorted(set(finish))},
            "scores": [asdict(score) | {"lines": lines} for score, lines in scores_of(measured.scored)],
            "scored": [dict(row) for row in measured.scored],
        }
        return {"generation": figures}


class GenerationSearchKind(RateSearchKind[GenerationSearchMeasurement]):
    """Search for the highest rate of requests at which TTFT, TPOT and e2e keep their bounds.

    Each time that has a bound must keep it at the same percentile. Each probe draws its requests from its own
    seed, and all bounds judge it. There is one evaluation for each bound, with the answer for all of them.
    """

    name = "generation_search"
    title = "max QPS of generation"
    phrase = "a search for the highest rate of generated answers"
    counted = "requests"
    reports = {GenerationSearchReport: MaxQpsPlot}
    headlines = ("max_qps", "max_qps_low", "max_qps_high", "limited_by", "own_max_qps")
    case_columns = ("bounded",)
    measurement = GenerationSearchMeasurement
    request = GenerationSearchRequest
    keeps_interrupted = True

    def job(self, request: GenerationSearchRequest) -> Any:
        """Returns the job of a request."""
        return GenerationKind().job(request)

    def measured(self, measurement: GenerationSearchMeasurement) -> str:
        return f"{len(measurement.probes)} probes"

    def summary(self, evaluation: Evaluation[GenerationSearchMeasurement]) -> Rows:
        search = evaluation.measurement
        (name, answer), *rows = super().summary(evaluation)
        rate, _, judged = answer.partition(" at ")
        bounds = " and ".join((f"{search.name} {judged}", *search.others)) if judged else ""
        limited = f", limited by {search.limited_by}" if search.limited_by else ""
        yield name, f"{rate} with {bounds}{limited}" if bounds else rate
        if search.own is not None:
            alone = replace(evaluation, measurement=replace(search, answer=search.own))
            yield f"{search.name} alone", dict(super().summary(alone))[name]
        yield from rows

    def description(self, evaluation: Evaluation[GenerationSearchMeasurement]) -> Rows:
        dataset, options = evaluation.dataset, evaluation.measurement.options
        least_s = options.min_duration_s
        yield "prompts", f"{dataset.name}, {dataset.size} of them"
        yield "load", f"{options.arrival} from {options.rate_qps:g} requests/s, seed {options.seed}"
        yield ("", f"budget {options.time_budget_s or 0:g} s, probes of {least_s:g} s at the least")

    def again(self, evaluation: Evaluation[GenerationSearchMeasurement]) -> Again:
        return again_of(self.name, evaluation.measurement.mix, GenerationSearchRequest)

    def conditions(self, evaluation: Evaluation[GenerationSearchMeasurement]) -> Mapping[str, str]:
        """Returns the options, with all bounds as one: each has the answer for all of them."""
        search, options = evaluation.measurement, evaluation.measurement.options
        own = f"{search.name} p{options.percentile:g} <= {options.latency_bound_ms:g} ms"
        bounds = " and ".join(sorted((own, *search.others)))
        return conditions_of(search.mix) | {"load": options.arrival, "latency bound": bounds}


def _time_rows(summary: GenerationSummary, headings: Mapping[str, str]) -> Rows:
    """Yields times in milliseconds, each figure with its interval."""
    for name, heading in headings.items():
        shown, times = [], getattr(summary, name)
        for figure in _FIGURES:
            value_ns, ends_ns = (getattr(times, f"{figure}_{each}") for each in ("ns", "interval_ns"))
            if value_ns is not None:
                ends = f" [{_ms(ends_ns[0])}, {_ms(ends_ns[1])}]" if ends_ns else ""
                shown.append(f"{figure} {_ms(value_ns)}{ends}")
        if shown:
            yield heading, "  ".join(shown) + " ms"


def _ms(value_ns: float | None) -> str:
    if value_ns is None:
        return "?"
    return "never" if math.isinf(value_ns) else f"{value_ns / 1e6:.3f}"


def _rate_text(rate: Rate, unit: str) -> str:
    if rate.per_s is None:
        return "not known"
    ends = "" if rate.interval is None else " [{:.2f}, {:.2f}]".format(*rate.interval)
    return f"{rate.per_s:.2f}{ends} {unit}"


def _tokens_text(measured: GenerationMeasurement, summary: GenerationSummary) -> str:
    """Returns the mean numbers of tokens, given beside planned, and who counted them."""
    told = [
        "not known" if (mean := summary.tokens(name)[name]) is None else f"{mean:.1f}" for name in _TOKENS
    ]
    less = f"; answers that are shorter: {summary.shorter}" if summary.shorter else ""
    by = f", counted by {measured.tokens_by}" if measured.tokens_by else ""
    cached = f" ({told[3]} of them cached)" if told[3] != "not known" else ""
    return f"{told[0]} in{cached}, {told[1]} out of {told[2]} planned a request{by}{less}"
