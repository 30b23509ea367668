"""The job that measures a served language model: it asks under load, and keeps every piece of each answer."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from inferometer.evaluators.conditions.conditions import Watch
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation, Status, utc_now
from inferometer.evaluators.jobs.job import Job, JobCallbacks, JobResources, JobStart
from inferometer.evaluators.kinds.batches.job import EvaluationTrace
from inferometer.evaluators.kinds.generation.measurement import GenerationMeasurement
from inferometer.evaluators.kinds.generation.prompts import MOST_PROMPTS, read_prompts, synthetic_prompts
from inferometer.evaluators.kinds.generation.request import CHAT, DURATION_S, PROMPT_TOKENS, GenerationRequest
from inferometer.evaluators.load.arrivals import Extent, Schedule, arrival_process
from inferometer.evaluators.load.issuer import RunLimits
from inferometer.evaluators.load.load_session import ClosedLoop, LoadSession, LoadTrace, check_load, peak_qps
from inferometer.evaluators.load.streams import UNKNOWN, Answer, GenerationSystem, Prompt
from inferometer.manifests.errors import ConfigurationError, EvaluationInterrupted

_Evaluations = Generator[Evaluation[GenerationMeasurement], None, None]


def generation_job(request: GenerationRequest) -> Job[Evaluation[GenerationMeasurement]]:
    """Returns the job of a request.

    Raises:
        ConfigurationError: The load is invalid, or higher than this machine can send on time; or the
            tokenizer cannot be read.
    """
    work, count = _planned(request), _token_counter(request.tokenizer)
    title, stops = request.model or request.agent or "", "stopping, without waiting for the answers"
    run = partial(_measured, request, work, count)
    opening = f"asking {request.agent}" if request.agent else f"opening {title}"
    return Job(run, title, opening, stops, has_total=False)


def _planned(request: GenerationRequest) -> Schedule | ClosedLoop:
    """Returns when requests are due; see ``GenerationRequest``."""
    duration_s = request.duration_s
    if duration_s is None and request.max_queries is None:
        duration_s = DURATION_S
    if request.max_queries is None:
        extent = Extent(duration_s or 0.0, 1, duration_s)
    else:
        extent = Extent(0.0, request.max_queries, duration_s)
    if request.concurrency is not None:
        return ClosedLoop(request.concurrency, extent)
    process, rate_qps = request.arrivals
    schedule = Schedule.drawn(arrival_process(process), rate_qps, extent, request.seed)
    check_load(peak_qps(schedule))
    return schedule


def _token_counter(path: Path | None) -> Callable[[str], int] | None:
    if path is None:
        return None
    from inferometer.agent.preprocessing.text_preprocessor import token_counter  # needs tokenizers

    return token_counter(path)


def _measured(
    request: GenerationRequest,
    work: Schedule | ClosedLoop,
    count: Callable[[str], int] | None,
    resources: JobResources,
    callbacks: JobCallbacks,
) -> _Evaluations:
    """Asks, and yields the evaluation; after a stop, that of the answers up to then."""
    system = resources.open_generator(request.system, request.max_batch_size, notify=callbacks.on_warning)
    with closing(system), closing(EvaluationTrace.of_load(request, callbacks.on_warning)) as trace:
        queries = len(work) if isinstance(work, Schedule) else request.max_queries or MOST_PROMPTS
        prompts, dataset = _prompts(request, system, queries, count)
        counted_by = own = "the server" if request.agent else "the engine"
        if system.ask(prompts[0]).output_tokens == UNKNOWN:
            counted_by = f"the tokenizer {request.tokenizer}" if count is not None else ""
            who = "the tokenizer counts them" if counted_by else "give --tokenizer to count them"
            callbacks.on_warning(f"the server does not tell how many tokens it generated (usage): {who}")
        counting = count if counted_by != own else None
        target = system.target(prompts, timeout_s=request.timeout_ms / 1e3, text=counting is not None)
        description, created_at = target.description, utc_now()
        limits = RunLimits(
            request.timeout_ms, stop_requested=callbacks.stop_requested, on_progress=callbacks.on_progress
        )
        with (
            closing(target),
            closing(Watch(description, system if request.agent else None)) as watch,
            trace.root(description.manifest.name) as scope,
        ):
            queries_traced = LoadTrace(scope, request.traced_share, request.seed) if scope else None
            session = LoadSession(target, limits, queries_traced)
            callbacks.on_start(JobStart(description, dataset.name, len(prompts), _described(work)))
            session.warm_up(request.warm_up_queries)
            watch.begin()
            run = session.run_closed(work) if isinstance(work, ClosedLoop) else session.run(work)
            if not len(run.queries):
                raise EvaluationInterrupted("stopped before a request was sent; nothing was published")
            elapsed_ns, conditions = round(session.elapsed_s * 1e9), watch.end()
            answers: Sequence[Answer] = target.answers(len(run.queries))
        if counting is not None:
            for each in answers:
                each.output_tokens = counting(each.text) if each.text else UNKNOWN
        measured = GenerationMeasurement.of(
            run,
            answers,
            [prompts[n % len(prompts)].output_tokens for n in range(len(answers))],
            options=request.given,
            elapsed_ns=elapsed_ns,
            tokens_by=counted_by,
            prompts=dataset.name,
        )
        evaluation = Evaluation(
            id=str(uuid.uuid4()),
            created_at=created_at,
            status=Status.of(whole=not measured.interrupted, usable=measured.answered > 0),
            system=description,
            dataset=dataset,
            measurement=measured,
            conditions=conditions,
        )
        yield trace.kept(evaluation)


def _prompts(
    request: GenerationRequest, system: GenerationSystem, queries: int, count: Callable[[str], int] | None
) -> tuple[list[Prompt], DatasetIdentity]:
    """Returns the prompts, of a file or synthetic."""
    chat = request.endpoint == CHAT
    prompt = partial(
        Prompt, chat=chat, temperature=request.temperature, seed=request.seed, ignore_eos=request.ignore_eos
    )
    if request.prompts is not None:
        read, checksum = read_prompts(request.prompts, request.output_tokens)
        if not (chat or all(isinstance(content, str) for content, _ in read)):
            raise ConfigurationError(f"prompts {request.prompts}: only --endpoint={CHAT} takes messages")
        identity = DatasetIdentity("prompts", str(request.prompts), None, checksum, len(read))
        return [prompt(*each) for each in read], identity

    def counted(text: str) -> int | None:
        told = system.ask(prompt(text, 1)).input_tokens
        return told if told != UNKNOWN else count(text) if count is not None else None

    tokens = request.prompt_tokens or PROMPT_TOKENS
    texts, source = synthetic_prompts(tokens, queries, request.seed, counted)
    prompts = [prompt(text, request.output_tokens) for text in texts]
    return prompts, DatasetIdentity("synthetic", source, None, None, len(prompts))


def _described(work: Schedule | ClosedLoop) -> str:
    if isinstance(work, ClosedLoop):
        return str(work)
    seconds = work.duration_ns / 1e9
    return f"{len(work)} requests at {work.rate_qps:g} requests/s ({work.source}), {seconds:.1f} s"
