"""The request to measure a served language model. Because help shows its options, imports are few."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from inferometer.evaluators.jobs import options
from inferometer.evaluators.jobs.options import COUNT, NOT_NEGATIVE, POSITIVE, SEED, Range, declared, like
from inferometer.evaluators.jobs.request import (
    SampledTraces,
    SystemOptions,
    TraceOptions,
    trace_sample_option,
)
from inferometer.evaluators.kinds.load.request import LoadRequest, MaxQpsRequest, check_metrics
from inferometer.manifests.errors import ConfigurationError

DURATION_S = 30.0
RATE_QPS = 1.0
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 32
CHAT, COMPLETIONS = "chat", "completions"
_SYSTEM = ("model_version", "framework_name", "gpu", "gpu_device_id", "threads", "dtype")
"""The options of a model in this process that ``SystemOptions`` has too."""
_SYNTHETIC = ("prompt_tokens", "prefix_share", "prefixes")
_EXCLUDED = (
    ("concurrency", "sends a request when an answer ends", ("rate_qps", "arrival")),
    ("prompts", "has the prompts", ("replay", *_SYNTHETIC)),
    ("replay", "has the prompts", _SYNTHETIC),
    ("replay", "has its times", ("arrival",)),
)
"""What options do, and which others they therefore exclude."""
_OBSERVING = ("trace_sample", "tracer_address", "trace_url", "server_statistics_hz", "metrics_url")
"""The options that change no figure."""
BOUNDED = ("TTFT", "TPOT", "e2e")
OFFLINE = "offline"
SCENARIOS: Mapping[str, tuple[float | None, float | None]] = {
    "server:deepseek-r1": (2000, 80),
    "interactive:deepseek-r1": (1500, 15),
    "server:gpt-oss-120b": (3000, 80),
    "interactive:gpt-oss-120b": (2000, 15),
    "server:llama2-70b": (2000, 200),
    "interactive:llama2-70b": (450, 40),
    "server:llama3_1-405b": (6000, 175),
    "interactive:llama3_1-405b": (4500, 80),
    "server:llama3_1-8b": (2000, 100),
    "interactive:llama3_1-8b": (500, 30),
    "server:mixtral-8x7b": (2000, 200),
    OFFLINE: (None, None),
}
"""MLPerf's bounds on the p99 of TTFT and of TPOT in milliseconds, as in mlperf.conf of LoadGen 6.0."""


_data = partial(declared, heading="Data")


def _tokens(text: str) -> int | str:
    """Returns a number, or the text of a distribution, which the job reads."""
    return int(text) if text.strip().isdecimal() else text


def _bound(name: str, of: str) -> Any:
    told = f"Bound on the {of}, for goodput and searches."
    return declared(None, told, "MS", within=POSITIVE, flags=(f"--{name}",), heading="Bounds")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest(SampledTraces, TraceOptions):
    """A language model under load, in this process or on a server.

    Raises:
        ConfigurationError: Two options exclude each other, or a value is invalid.
    """

    agent: str | None = declared(
        None,
        "Server of OpenAI's protocol: openai+http://HOST:PORT or openai+https://HOST:PORT, with the path "
        "before /v1 if it has one. Its key is the secret of AGENT_SECRET or --secret_file.",
        "AGENT",
        variable="AGENT_ADDRESS",
        default_text="in this process",
    )
    model_name: str | None = declared(
        None,
        "Model of a manifest with the task generation, or as the server names it.",
        "NAME",
        default_text=f"{options.LANGUAGE_MODEL}, or the only one that the server has",
    )
    model_version: str | None = like("model_version", SystemOptions)
    framework_name: str | None = like("framework_name", SystemOptions, variable=None)
    gpu: bool = like("gpu", SystemOptions)
    gpu_device_id: int = like("gpu_device_id", SystemOptions)
    threads: int | None = like(
        "threads", SystemOptions, default_text=f"OMP_NUM_THREADS, else the cores but {options.SPARE_CORES}"
    )
    dtype: Enum | None = like("dtype", SystemOptions)  # noqa: RUF009 - a field
    max_batch_size: int = declared(1, "Most requests in a step in this process.", "N", within=COUNT)
    endpoint: str = declared(
        CHAT,
        "Endpoint that prompts go to: chat or completions, which in this process omits the chat template.",
        "NAME",
        choices=(CHAT, COMPLETIONS),
        ignores_case=True,
    )
    rate_qps: float | None = declared(
        None,
        "Requests per second: the rate, or the start of a search.",
        "QPS",
        within=POSITIVE,
        flags=("--rate",),
        default_text=f"{RATE_QPS:g}",
    )
    arrival: str | None = declared(
        None,
        "Arrival process of the requests: constant, poisson, gamma:cv=2, bursts:on_s=1,off_s=1, "
        "ramp:from_share=0.1,to_share=1,over_s=60.",
        "PROCESS",
        default_text=options.ARRIVAL,
    )
    concurrency: tuple[int, ...] | None = declared(
        None,
        "Keep N requests in flight instead: each answer triggers the next request (closed loop). Several "
        "numbers have a run each.",
        "N,N",
        within=COUNT,
    )
    saturate: bool = declared(
        False, "Go on with twice the last number in flight while output tokens/s grow by more than 5 %."
    )
    think_time_s: float = declared(
        0.0, "Time from an answer to when the next request of its user is due.", "S", within=NOT_NEGATIVE
    )
    duration_s: float | None = declared(
        None,
        "Duration of the run.",
        "S",
        within=POSITIVE,
        default_text=f"{DURATION_S:g}, unless max_queries or replay is given",
    )
    max_queries: int | None = declared(None, "Requests after which the run ends.", "N", within=COUNT)
    prompts: Path | None = declared(
        None,
        "Prompts, in turn: JSON lines with prompt, messages or turns (the texts of a user, which follow "
        "answers; a rate is then that of new users), and output_tokens if a line has its own. Lines with "
        "answer, answers, choices and correct, or text are scored.",
        "FILE",
        reads=True,
        heading="Data",
    )
    replay: Path | None = declared(
        None,
        "Trace to replay: JSON lines with timestamp (ms), input_length, and output_length and hash_ids (of "
        "blocks of 512 tokens) if known. With --rate, its times are scaled to this mean rate.",
        "FILE",
        reads=True,
        heading="Data",
    )
    prompt_tokens: int | str | None = _data(
        None,
        "Tokens in each synthetic prompt, with those of the chat's template, as the system counts them; or a "
        "distribution: normal:mean=256,std=64,min=16,max=1024, lognormal:…, uniform:min=16,max=512.",
        "N|DISTRIBUTION",
        within=COUNT,
        made=_tokens,
        default_text=f"{PROMPT_TOKENS}, unless prompts or replay is given",
    )
    prefix_share: float = _data(
        0.0,
        "Share of each synthetic prompt, from its beginning, that is a common prefix.",
        "SHARE",
        within=Range(0, 1),
    )
    prefixes: int = _data(
        1, "Number of common prefixes, of which each prompt has a random one.", "N", within=COUNT
    )
    output_tokens: int | str = _data(
        OUTPUT_TOKENS,
        "Most tokens that an answer may have, unless the line of a file tells; or a distribution as for "
        "prompt_tokens.",
        "N|DISTRIBUTION",
        within=COUNT,
        made=_tokens,
    )
    ignore_eos: bool = declared(
        False, "Generate all output_tokens; of servers, vLLM and SGLang can (ignore_eos, min_tokens)."
    )
    temperature: float = declared(0.0, "Temperature of sampling; 0 is greedy.", "T", within=NOT_NEGATIVE)
    seed: int | None = declared(
        None, "Seed of arrivals, prompts and sampling; by default a new one for each run.", "N", within=SEED
    )
    ttft_bound_ms: float | None = _bound("ttft_bound", "time to the first token")
    tpot_bound_ms: float | None = _bound("tpot_bound", "time per output token after the first")
    e2e_bound_ms: float | None = _bound("e2e_bound", "time of the whole answer")
    scenario: str | None = declared(
        None,
        "MLPerf's bounds on TTFT and TPOT: server:BENCHMARK or interactive:BENCHMARK, such as "
        "interactive:llama2-70b; or offline, which has none, and sends max_queries at once.",
        "SCENARIO",
        choices=tuple(SCENARIOS),
        heading="Bounds",
    )
    tokenizer: Path | None = declared(
        None,
        "The model's tokenizer.json, or its folder, to count the tokens of a server that does not tell.",
        "PATH",
    )
    timeout_ms: float = declared(
        60_000.0, "Timeout of a request, from the time it was due.", "MS", within=Range(1)
    )
    warm_up_queries: int = declared(
        4,
        "Requests to send before the run without measuring them.",
        "N",
        within=NOT_NEGATIVE,
        flags=("--warmup",),
    )
    trace_sample: float | None = trace_sample_option()
    server_statistics_hz: float = like(
        "server_statistics_hz", LoadRequest, default=options.SERVER_STATISTICS_HZ, default_text=""
    )
    metrics_url: str | None = like("metrics_url", LoadRequest)

    def __post_init__(self) -> None:
        in_flight: Any = self.concurrency
        if isinstance(in_flight, int):
            object.__setattr__(self, "concurrency", (in_flight,))
        options.check_options(self)
        self._use_scenario()
        check_metrics(self)
        given = options.given_options(self)
        for name, reason, excluded in _EXCLUDED:
            for other in excluded if name in given else ():
                if other in given:
                    raise ConfigurationError(f"{name} {reason}; leave out {other.removesuffix('_qps')}")
        for name, needed in (("prefixes", "prefix_share"), ("saturate", "concurrency")):
            if name in given and needed not in given:
                raise ConfigurationError(f"{options.spoken(name)} needs {needed}; give it too")
        if self.think_time_s and self.concurrency is None and self.prompts is None:
            raise ConfigurationError("think_time needs concurrency, or prompts with turns; give one of them")
        if self.agent is None:
            if self.tokenizer is not None:
                raise ConfigurationError(
                    "tokenizer counts the tokens of a server; leave it out, or give agent: "
                    "a model in this process has its own"
                )
        elif refused := [name for name in (*_SYSTEM, "max_batch_size") if name in given]:
            raise ConfigurationError(
                f"{refused[0]} is for a model in this process; leave out {refused[0]} or agent"
            )

    def _use_scenario(self) -> None:
        """Sets the bounds that are not given to those of the scenario, or what is in flight in offline."""
        bounds = zip(("ttft_bound_ms", "tpot_bound_ms"), SCENARIOS[self.scenario or OFFLINE], strict=True)
        for name, bound_ms in bounds:
            object.__setattr__(self, name, getattr(self, name) or bound_ms)
        if self.scenario == OFFLINE:
            if (
                self.max_queries is None
                or self.rate_qps
                or self.concurrency not in (None, (self.max_queries,))
            ):
                told = "give max_queries, and leave out concurrency and rate"
                raise ConfigurationError(f"scenario {OFFLINE} sends all requests at once; {told}")
            object.__setattr__(self, "concurrency", (self.max_queries,))

    @property
    def model(self) -> str:
        """The name of the model; empty for the only one that the server has."""
        return self.model_name or ("" if self.agent else options.LANGUAGE_MODEL)

    @property
    def system(self) -> Any:
        """The ``SystemRequest``; a model in this process leaves a core to the thread that sends."""
        chosen = {name: getattr(self, name) for name in _SYSTEM}
        found = SystemOptions(model_name=self.model, **chosen).request()
        session = replace(found.session, spare_cores=options.SPARE_CORES)
        return replace(found, agents=(self.agent,) if self.agent else (), session=session)

    @property
    def arrivals(self) -> tuple[str, float]:
        """The arrival process and its rate."""
        return self.arrival or options.ARRIVAL, self.rate_qps or RATE_QPS

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults, as an evaluation stores them."""
        found = options.further(self, _OBSERVING)
        return {name: str(each) if isinstance(each, Path) else each for name, each in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSearchRequest(GenerationRequest):
    """A search for the highest rate at which each of several times keeps its bound at a percentile.

    Raises:
        ConfigurationError: There is no bound, or a value is invalid.
    """

    concurrency: tuple[int, ...] | None = None  # a search has rates, and its probes their own length
    saturate: bool = False
    think_time_s: float = 0.0
    replay: Path | None = None
    duration_s: float | None = None
    max_queries: int | None = None
    percentile: float = declared(
        options.PERCENTILE, "Percentile of each time that its bound applies to.", "P", within=Range(1, 99.999)
    )
    min_duration_s: float = declared(
        options.PROBE_MIN_DURATION_S, "Minimum duration of a probe.", "S", within=Range(0.01, 86_400)
    )
    time_budget_s: float = declared(
        options.TIME_BUDGET_S, "Time limit of the search.", "S", within=Range(1, 7 * 86_400)
    )

    def __post_init__(self) -> None:
        if self.scenario == OFFLINE:
            raise ConfigurationError(f"scenario {OFFLINE} has no rate to search for; name another one")
        GenerationRequest.__post_init__(self)
        if not any((self.ttft_bound_ms, self.tpot_bound_ms, self.e2e_bound_ms)):
            raise ConfigurationError(
                "a search needs a bound; give ttft_bound, tpot_bound, e2e_bound or scenario"
            )

    @property
    def searches(self) -> dict[str, MaxQpsRequest]:
        """The search for the highest rate that keeps each bound, by the time that is bounded.

        Raises:
            ConfigurationError: The arrival process has no steady rate, or the time budget is too short.
        """
        process, rate_qps = self.arrivals
        names = ("percentile", "min_duration_s", "time_budget_s", "timeout_ms", "seed", "warm_up_queries")
        common = {name: getattr(self, name) for name in (*names, "max_batch_size")}
        bounds_ms = {name: getattr(self, f"{name.lower()}_bound_ms") for name in BOUNDED}
        return {
            name: MaxQpsRequest(latency_bound_ms=bound_ms, initial_qps=rate_qps, arrival=process, **common)
            for name, bound_ms in bounds_ms.items()
            if bound_ms is not None
        }
