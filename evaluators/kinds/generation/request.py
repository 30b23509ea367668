"""The request to measure a served language model. Because help shows its options, imports are few."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
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
from inferometer.manifests.errors import ConfigurationError

DURATION_S = 30.0
RATE_QPS = 1.0
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 32
CHAT, COMPLETIONS = "chat", "completions"
_SYSTEM = ("model_version", "framework_name", "gpu", "gpu_device_id", "threads", "dtype")
"""The options of a model in this process that ``SystemOptions`` has too."""


def _bound(name: str, of: str) -> Any:
    return declared(None, f"Bound on the {of}, for goodput.", "MS", within=POSITIVE, flags=(f"--{name}",))


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
        None, "Requests per second.", "QPS", within=POSITIVE, flags=("--rate",), default_text=f"{RATE_QPS:g}"
    )
    arrival: str | None = declared(
        None,
        "Arrival process of the requests: constant, poisson, gamma:cv=2, bursts:on_s=1,off_s=1, "
        "ramp:from_share=0.1,to_share=1,over_s=60.",
        "PROCESS",
        default_text=options.ARRIVAL,
    )
    concurrency: int | None = declared(
        None,
        "Keep N requests in flight instead: each answer triggers the next request (closed loop).",
        "N",
        within=COUNT,
    )
    duration_s: float | None = declared(
        None,
        "Duration of the run.",
        "S",
        within=POSITIVE,
        default_text=f"{DURATION_S:g}, unless max_queries is given",
    )
    max_queries: int | None = declared(None, "Requests after which the run ends.", "N", within=COUNT)
    prompts: Path | None = declared(
        None,
        "Prompts, in turn: JSON lines with prompt or messages, and output_tokens if a line has its own.",
        "FILE",
        reads=True,
    )
    prompt_tokens: int | None = declared(
        None,
        "Tokens in each synthetic prompt, with those of the chat's template, as the system counts them.",
        "N",
        within=COUNT,
        default_text=f"{PROMPT_TOKENS}, unless prompts is given",
    )
    output_tokens: int = declared(OUTPUT_TOKENS, "Most tokens that an answer may have.", "N", within=COUNT)
    ignore_eos: bool = declared(
        False, "Generate all output_tokens; of servers, vLLM and SGLang can (ignore_eos, min_tokens)."
    )
    temperature: float = declared(0.0, "Temperature of sampling; 0 is greedy.", "T", within=NOT_NEGATIVE)
    seed: int = declared(0, "Seed of the arrivals, the synthetic prompts and the sampling.", "N", within=SEED)
    ttft_bound_ms: float | None = _bound("ttft_bound", "time to the first token")
    tpot_bound_ms: float | None = _bound("tpot_bound", "time per output token after the first")
    e2e_bound_ms: float | None = _bound("e2e_bound", "time of the whole answer")
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

    def __post_init__(self) -> None:
        options.check_options(self)
        if self.concurrency is not None:
            for name, shown in (("rate_qps", "rate"), ("arrival", "arrival")):
                if getattr(self, name) is not None:
                    raise ConfigurationError(
                        f"concurrency sends a request when an answer ends; leave out {shown}"
                    )
        if self.agent is None:
            if self.tokenizer is not None:
                raise ConfigurationError(
                    "tokenizer counts the tokens of a server; leave it out, or give agent: "
                    "a model in this process has its own"
                )
        elif given := [name for name in (*_SYSTEM, "max_batch_size") if name in self.given]:
            raise ConfigurationError(
                f"{given[0]} is for a model in this process; leave out {given[0]} or agent"
            )
        if self.prompts is not None and self.prompt_tokens is not None:
            raise ConfigurationError("prompts has the prompts; leave out prompt_tokens")

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
        found = options.further(self, ("trace_sample", "tracer_address", "trace_url"))  # change no figure
        return {name: str(each) if isinstance(each, Path) else each for name, each in found.items()}
