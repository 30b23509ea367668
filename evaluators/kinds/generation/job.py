"""The job that measures a served language model: it asks under load, and keeps every piece of each answer."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from inferometer.evaluators.conditions.conditions import Watch
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation, Status, utc_now
from inferometer.evaluators.jobs.job import Job, JobCallbacks, JobPart, JobResources, JobStart
from inferometer.evaluators.kinds.batches.job import EvaluationTrace
from inferometer.evaluators.kinds.generation.measurement import (
    GenerationMeasurement,
    GenerationSearchMeasurement,
    GenerationSummary,
)
from inferometer.evaluators.kinds.generation.prompts import (
    MOST_PROMPTS,
    Asked,
    RequestFile,
    lengths_of,
    planned_prompts,
    read_prompts,
    read_trace,
    synthetic_prompts,
)
from inferometer.evaluators.kinds.generation.request import (
    CHAT,
    DURATION_S,
    PROMPT_TOKENS,
    GenerationRequest,
    GenerationSearchRequest,
)
from inferometer.evaluators.kinds.load.mix import searched
from inferometer.evaluators.load.arrivals import Extent, Schedule, arrival_process
from inferometer.evaluators.load.issuer import RunLimits
from inferometer.evaluators.load.load_session import (
    ALLOWED_SHARE,
    MAX_CONCURRENCY,
    ClosedLoop,
    LoadSession,
    LoadTrace,
    MixSession,
    calibrate,
    check_load,
    peak_qps,
    reader_of,
)
from inferometer.evaluators.load.streams import UNKNOWN, GenerationSystem, Prompt, StreamTarget
from inferometer.evaluators.tasks.texts import scored
from inferometer.manifests.errors import ConfigurationError, EvaluationInterrupted, InputError

_Measurement: TypeAlias = GenerationMeasurement | GenerationSearchMeasurement
_Bounds: TypeAlias = Mapping[str, Any]
"""The bounds of a search; see ``GenerationSearchRequest.searches``."""
_Work: TypeAlias = Schedule | ClosedLoop | _Bounds
_SYSTEMS = ("the server", "the engine")
_GROWS = 1.05  # times the highest tokens/s before, for another run with twice as many in flight


def generation_job(request: GenerationRequest) -> Job[Evaluation[_Measurement]]:
    """Returns the job of a request.

    Raises:
        ConfigurationError: The load, a distribution or the trace is invalid; the load is higher than this
            machine can send on time; or the tokenizer cannot be read.
    """
    file = None
    if request.seed is None:  # a server may have the prompts of an earlier one in its cache
        request = replace(request, seed=int(np.random.default_rng().integers(2**31)))
    if request.replay is not None:
        file = read_trace(request.replay)
    elif request.prompts is not None:
        file = _checked_prompts(request, read_prompts(request.prompts))
    for name in ("prompt_tokens", "output_tokens"):
        lengths_of(name, getattr(request, name) or PROMPT_TOKENS)
    works, count = _planned(request, file), None
    if request.tokenizer is not None:
        from inferometer.agent.preprocessing.text_preprocessor import token_counter  # needs tokenizers

        count = token_counter(request.tokenizer)
    title, stops = request.model or request.agent or "", "stopping, without waiting for the answers"
    opening = f"asking {request.agent}" if request.agent else f"opening {title}"
    return Job(partial(_measured, request, works, file, count), title, opening, stops, has_total=False)


def _checked_prompts(request: GenerationRequest, file: RequestFile) -> RequestFile:
    """Returns a file of prompts, all of which can be asked as requested."""
    turns = any(each.turns for each in file.requests)
    truths = [each.truth for each in file.requests if each.truth]
    reasons = {
        f"only --endpoint={CHAT} takes messages or turns": request.endpoint != CHAT
        and (turns or not all(isinstance(each.content, str) for each in file.requests)),
        "a search cannot ask turns": turns and isinstance(request, GenerationSearchRequest),
        "without turns, think_time needs concurrency": request.think_time_s
        and not turns
        and request.concurrency is None,
        "answers and choices are for files without turns": turns
        and any(each.answers or each.choices for each in truths),
    }
    for reason in (reason for reason, applies in reasons.items() if applies):
        raise ConfigurationError(f"prompts {file.path}: {reason}")
    return file


def _planned(request: GenerationRequest, file: RequestFile | None) -> list[_Work]:
    """Returns when requests are due, or users come, in each run, or the bounds of a search."""
    if isinstance(request, GenerationSearchRequest):
        bounds, ceiling_qps = request.searches, calibrate()
        check_load(request.arrivals[1], ceiling_qps)
        most_qps = ceiling_qps * ALLOWED_SHARE
        return [{name: replace(each, max_rate_qps=most_qps) for name, each in bounds.items()}]
    duration_s, most, trace = request.duration_s, request.max_queries, file if request.replay else None
    if trace is not None:
        most = min(len(trace.requests), most or len(trace.requests))
    elif duration_s is None and most is None:
        duration_s = DURATION_S
    extent = Extent(duration_s or 0.0, 1, duration_s) if most is None else Extent(0.0, most, duration_s)
    if request.concurrency is not None:
        return [ClosedLoop(each, extent, request.think_time_s) for each in request.concurrency]
    process, rate_qps = request.arrivals
    if trace is None:
        schedule = Schedule.drawn(arrival_process(process), rate_qps, extent, request.seed or 0)
    else:
        schedule = trace.schedule(extent, request.rate_qps)
    check_load(peak_qps(schedule))
    has_turns = file is not None and any(each.turns for each in file.requests)
    return [ClosedLoop(1, extent, request.think_time_s, users=schedule) if has_turns else schedule]


def _measured(
    request: GenerationRequest,
    works: list[_Work],
    file: RequestFile | None,
    count: Callable[[str], int] | None,
    resources: JobResources,
    callbacks: JobCallbacks,
) -> Generator[Evaluation[_Measurement], None, None]:
    """Yields the evaluations of each run, which has prompts of its own: a cache may have those of another."""
    system = resources.open_generator(request.system, request.max_batch_size, notify=callbacks.on_warning)
    group_id = str(uuid.uuid4()) if len(works) > 1 or request.saturate else None
    most_per_s = 0.0
    with closing(system):
        for number, work in enumerate(works):
            callbacks.on_part(JobPart(number + 1, len(works)))
            given = (work.concurrency,) if isinstance(work, ClosedLoop) and request.concurrency else None
            one = replace(request, concurrency=given, saturate=False, seed=(request.seed or 0) + number)
            with closing(EvaluationTrace.of_load(one, callbacks.on_warning, group_id)) as trace:
                found = _run(one, work, file, count, system, trace, callbacks)
                found[0] = trace.kept(found[0])
                yield from (replace(each, group_id=each.group_id or group_id) for each in found)
            if any(each.status is Status.INTERRUPTED for each in found):
                return
            measured: Any = found[0].measurement
            if request.saturate and isinstance(work, ClosedLoop):
                summary, double = GenerationSummary(measured), 2 * work.concurrency
                per_s = next((each.rate_qps for each in summary.rates.values()), None)  # first, of tokens
                if per_s is None:
                    told = f"{work}: too few answers to tell whether more in flight give more tokens/s"
                    callbacks.on_warning(f"{told}; give more --duration or --max_queries")
                elif number + 1 == len(works) and per_s > _GROWS * most_per_s and double <= MAX_CONCURRENCY:
                    works.append(replace(work, concurrency=double))
                most_per_s = max(most_per_s, per_s or 0.0)


def _run(
    request: GenerationRequest,
    work: _Work,
    file: RequestFile | None,
    count: Callable[[str], int] | None,
    system: GenerationSystem,
    trace: EvaluationTrace,
    callbacks: JobCallbacks,
) -> list[Evaluation[_Measurement]]:
    """Asks, and returns the evaluations; after a stop, those of the answers up to then."""
    most = len(work) if isinstance(work, Schedule) else request.max_queries
    prompts, lines, dataset = _prompts(request, system, file, most, count)
    turns, truths = [each.turns for each in lines], [each.truth for each in lines if each.truth]
    is_run = isinstance(work, (Schedule, ClosedLoop))
    if not is_run and any(each.answers or each.choices or each.text for each in truths):
        told = "a search scores no answers, choices or texts; agent measure generation does"
        callbacks.on_warning(f"prompts {request.prompts}: {told}")
    counted_by, busy_ms = _counted_by(request, work, system, prompts, callbacks.on_warning)
    counting = count if counted_by not in _SYSTEMS else None
    text = counting is not None or any(turns) or (is_run and any(each.answers for each in truths))
    target = system.target(prompts, timeout_s=request.timeout_ms / 1e3, text=text)
    asked = _Conversations(prompts, turns, target)
    if isinstance(work, ClosedLoop) and any(turns):
        work = replace(work, follow=partial(asked.follow, work.users is not None))
    description, created_at = target.description, utc_now()
    limits = RunLimits(
        request.timeout_ms, stop_requested=callbacks.stop_requested, on_progress=callbacks.on_progress
    )
    with (
        closing(target),
        closing(Watch(description, system if request.agent else None)) as watch,
        trace.root(description.manifest.name) as scope,
    ):
        reader = reader_of(target, request.metrics_url or "", request.server_statistics_hz)
        traced = LoadTrace(scope, request.traced_share, request.seed or 0) if scope else None
        session = LoadSession(target, limits, traced, reader)
        callbacks.on_start(JobStart(description, dataset.name, len(prompts), _described(work)))
        session.warm_up(request.warm_up_queries)
        watch.begin()
        known = {"options": request.given, "tokens_by": counted_by, "prompts": dataset.name}
        answered = partial(_answered, target, asked, counting, known)
        measured: Sequence[_Measurement]
        if isinstance(work, (Schedule, ClosedLoop)):
            run = session.run_closed(work) if isinstance(work, ClosedLoop) else session.run(work)
            if not len(run.queries):
                raise EvaluationInterrupted("stopped before a request was sent; nothing was published")
            one = answered(run)
            measured, whole, usable = [one], not one.interrupted, one.answered > 0
        else:
            probes = BoundedProbes(work, session, limits, answered)
            measured, whole = _searched(request, work, probes, busy_ms)
            usable = probes.right_answers > 0
        elapsed_ns, conditions = round(session.elapsed_s * 1e9), watch.end()
    if truths and isinstance(measured[0], GenerationMeasurement):
        right = np.flatnonzero(GenerationSummary(measured[0]).answered)[::-1].tolist() if text else []
        first = {n % len(prompts): target.answer(n).visible for n in right}  # of those to the same prompt
        rows = scored(
            truths,
            first,
            lambda which, more: system.log_probabilities(prompts[which], more),
            callbacks.stop_requested,
        )
        measured = [replace(measured[0], scored=rows)]
    for note in reader.notes.values():
        callbacks.on_warning(f"statistics of the server are missing: {note}")
    group_id = str(uuid.uuid4()) if len(measured) > 1 else None
    return [
        Evaluation(
            id=str(uuid.uuid4()),
            created_at=created_at,
            status=Status.of(whole=whole, usable=usable),
            system=description,
            dataset=dataset,
            measurement=replace(each, elapsed_ns=elapsed_ns),
            conditions=conditions,
            group_id=group_id,
        )
        for each in measured
    ]


def _counted_by(
    request: GenerationRequest,
    work: _Work,
    system: GenerationSystem,
    prompts: Sequence[Prompt],
    warn: Callable[[str], None],
) -> tuple[str, float]:
    """Asks the first prompt that is accepted; returns who counts tokens, or nobody, and the answer's ms."""
    tried = (prompts[0], min(prompts, key=lambda each: len(str(each.content))))
    for prompt in tried:
        asked_ns = time.perf_counter_ns()
        try:
            answer = system.ask(prompt)
            break
        except InputError:
            if prompt is tried[-1]:
                raise
    answered_ns, counted_by = time.perf_counter_ns() - asked_ns, _SYSTEMS[request.agent is None]
    if answer.output_tokens == UNKNOWN:
        counted_by = f"the tokenizer {request.tokenizer}" if request.tokenizer else ""
        who = "the tokenizer counts them" if counted_by else "give --tokenizer to count them"
        told = f"the server does not tell how many tokens it generated (usage): {who}"
        if not (counted_by or isinstance(work, (Schedule, ClosedLoop))) and "TPOT" in work:
            raise ConfigurationError(f"tpot_bound: {told}")
        warn(told)
    return counted_by, answered_ns / 1e6


def _answered(
    target: StreamTarget,
    asked: _Conversations,
    counting: Callable[[str], int] | None,
    known: Mapping[str, Any],
    run: Any,
) -> GenerationMeasurement:
    """Returns the measurement of the last run of a target, whose duration is not yet set."""
    answers = [target.answer(query) for query in range(len(run.queries))]
    if counting is not None:
        for each in answers:
            each.output_tokens = counting(each.text) if each.text else UNKNOWN
    planned = [asked.prompt(query).output_tokens for query in range(len(answers))]
    target.first += len(answers)  # the next run asks others, which no cache of prefixes knows
    return GenerationMeasurement.of(run, answers, planned, elapsed_ns=0, **known)


class BoundedProbes(MixSession):
    """The probes of a search, each of which every bound judges.

    Only whole answers are known during a probe. It is stopped if so many of them come later than all bounds
    together allow that no bound can be kept.

    Args:
        bounds: The bounds, by the time that each is for.
        session: Sends the probes.
        limits: Those of the session.
        answered: Returns the measurement of the last probe.
    """

    def __init__(
        self,
        bounds: _Bounds,
        session: LoadSession,
        limits: RunLimits,
        answered: Callable[[Any], GenerationMeasurement],
    ) -> None:
        super().__init__((), limits)
        self._bounds, self._session, self._answered = bounds, session, answered
        self._tokens = 0  # the most of an answer; known after the first probe
        self.right_answers = 0

    @property
    def elapsed_s(self) -> float:
        """See ``LoadSession``, as for ``reconnect``."""
        return self._session.elapsed_s

    def reconnect(self) -> None:
        """Uses new connections for the next probes."""
        self._session.reconnect()

    def run(
        self, schedules: Sequence[Schedule], late: Sequence[tuple[int, int]], name: str
    ) -> tuple[Any, ...]:
        """Sends the first of the schedules, and returns the run as each bound judges it."""
        allowed_ns = {name: ns for name, (ns, _) in zip(self._bounds, late, strict=True)}
        whole_ns = [allowed_ns["e2e"]] if "e2e" in allowed_ns else []
        if self._tokens and {"TTFT", "TPOT"} <= allowed_ns.keys():
            whole_ns.append(allowed_ns["TTFT"] + self._tokens * allowed_ns["TPOT"])
        run = self._session.run(schedules[0], min(whole_ns, default=None), sum(n for _, n in late), name)
        measured = self._answered(run)
        if measured.interrupted:
            return (run,) * len(late)
        self.right_answers += measured.answered
        self._tokens = int(measured.streams.planned_tokens.max(initial=self._tokens))
        self.probes.append(tuple(map(GenerationSummary(measured).run_of, self._bounds)))
        return self.probes[-1]


def _searched(
    request: GenerationRequest, bounds: _Bounds, probes: BoundedProbes, busy_ms: float
) -> tuple[Sequence[GenerationSearchMeasurement], bool]:
    """Searches, and returns the measurement of each bound, and whether there is an answer."""
    said = {n: f"{n} p{each.percentile:g} <= {each.latency_bound_ms:g} ms" for n, each in bounds.items()}
    common = {
        name: {
            "name": name,
            "others": tuple(text for other, text in said.items() if other != name),
            "options": each.load_options(),
            "mix": request.given,
        }
        for name, each in bounds.items()
    }
    [first, *_] = bounds.values()
    limit = (first.max_rate_qps or math.inf) / first.rate_qps
    found, whole = searched(bounds, probes, GenerationSearchMeasurement, common, limit, busy_ms)
    return [measured for measured, _ in found.values()], whole


def _prompts(
    request: GenerationRequest,
    system: GenerationSystem,
    file: RequestFile | None,
    most: int | None,
    count: Callable[[str], int] | None,
) -> tuple[list[Prompt], Sequence[Asked], DatasetIdentity]:
    """Returns the prompts, of a file or synthetic ones for at most so many requests, and their lines."""
    chat, seed = request.endpoint == CHAT, request.seed or 0
    prompt = partial(Prompt, temperature=request.temperature, seed=seed, ignore_eos=request.ignore_eos)

    def counted(text: str) -> int | None:
        told = system.ask(prompt(text, 1, chat)).input_tokens
        return told if told != UNKNOWN else count(text) if count is not None else None

    if file is None:
        lengths = lengths_of("prompt_tokens", request.prompt_tokens or PROMPT_TOKENS)
        tokens = lengths.drawn(min(most or MOST_PROMPTS, MOST_PROMPTS), (seed, 1))
        planned = planned_prompts(tokens, seed, request.prefix_share, request.prefixes)
        texts, source = synthetic_prompts(planned, seed, counted)
        lines: Sequence[Asked] = list(map(Asked, texts))
        identity = DatasetIdentity("synthetic", source, None, None, len(lines))
    elif request.replay:
        lines = file.requests[:most]
        texts, source = synthetic_prompts([each.content for each in lines], seed, counted)
        lines = [each._replace(content=text) for each, text in zip(lines, texts, strict=True)]
        identity = DatasetIdentity("trace", f"{file.path}: {source}", None, file.checksum, len(lines))
    else:
        lines = file.requests
        identity = DatasetIdentity("prompts", str(file.path), None, file.checksum, len(lines))
    drawn = lengths_of("output_tokens", request.output_tokens).drawn(len(lines), (seed, 2))
    prompts = [
        prompt(each.content, each.output_tokens or n, chat and not (each.truth and each.truth.text))
        for each, n in zip(lines, drawn, strict=True)
    ]
    return prompts, lines, identity


class _Conversations:
    """Conversations of users, each of whose requests has all that was said before."""

    def __init__(
        self, prompts: Sequence[Prompt], turns: Sequence[Sequence[str]], target: StreamTarget
    ) -> None:
        self._prompts, self._turns, self._target = prompts, turns, target
        self._begun = 0
        self._asked: dict[int, tuple[Prompt, Sequence[str]]] = {}

    def prompt(self, query: int) -> Prompt:
        """Returns what a query of the last run asked."""
        in_turn = self._prompts[(self._target.first + query) % len(self._prompts)]
        return self._asked[query][0] if query in self._asked else in_turn

    def follow(self, leaves: bool, query: int) -> Callable[[int], None] | None:
        """Prepares the turn after a right answer, or another conversation unless its user leaves."""
        said, rest = self._asked.get(query, (None, ()))
        answer = self._target.answer(query)
        if said and rest and answer.finish and not answer.error:
            first = {"role": "user", "content": said.content}
            before = [first] if isinstance(said.content, str) else said.content
            more = {"role": "assistant", "content": answer.visible}, {"role": "user", "content": rest[0]}
            asked = replace(said, content=[*before, *more]), rest[1:]
        elif leaves and query >= 0:
            return None
        else:
            which = self._begun % len(self._prompts)
            self._begun, asked = self._begun + 1, (self._prompts[which], self._turns[which])

        def submit(number: int) -> None:
            self._asked[number] = asked
            self._target.submit(number, asked[0])

        return submit


def _described(work: Schedule | ClosedLoop | _Bounds) -> str:
    if isinstance(work, ClosedLoop):
        return str(work)
    if not isinstance(work, Schedule):
        [first, *_] = work.values()
        names = " and ".join(work)
        return f"searching for at most {first.time_budget_s:g} s for the rate that keeps {names}"
    seconds = work.duration_ns / 1e9
    return f"{len(work)} requests at {work.rate_qps:g} requests/s ({work.source}), {seconds:.1f} s"
