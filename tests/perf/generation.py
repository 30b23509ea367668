"""``agent measure generation`` beside guidellm and aiperf by turns, on a server with known times and on vLLM.

Both peers run in environments of their own: ``INFEROMETER_GUIDELLM`` and ``INFEROMETER_AIPERF`` name their
commands (``python -m venv peer && peer/bin/pip install guidellm==0.8.1``; ``aiperf==0.13.0``), and
``INFEROMETER_GENERATION_MODEL`` a folder of Hugging Face's format whose tokenizer they make prompts with.
``INFEROMETER_VLLM_URL`` is the address of a server that serves this folder as ``tiny``, such as
``http://127.0.0.1:8000``; the known server needs none. All send the same constant rate.

The lag is that of the known server: how much later each request came than the schedule that begins with the
most punctual one. The processor time of a request is that of the tool's processes, without what a run of
a second takes, so that imports and set-up do not count.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests.integration.generation_truth import Serving, serving
from tests.perf.ratios import Row, divided, interleaved

GUIDELLM, AIPERF = os.environ.get("INFEROMETER_GUIDELLM"), os.environ.get("INFEROMETER_AIPERF")
MODEL, VLLM = os.environ.get("INFEROMETER_GENERATION_MODEL"), os.environ.get("INFEROMETER_VLLM_URL")
ROUNDS, RUN_S, SHORT_S = 3, 8, 1
RATES = (5, 20, 50)
_PROMPT, _OUTPUT = 64, 16
_AGENT = [sys.executable, "-c", "from inferometer.client.cli.main import main; main()"]
_LATE, _DISTURBED = 6, 8
_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Figures:
    """What a tool says of a run, what it took, and how late it was; without a known server, infinitely."""

    ttft_ms: float
    tpot_ms: float
    requests: int
    cpu_ms: float
    lag_ms: float = float("inf")

    @property
    def request_cpu_ms(self) -> float:
        return self.cpu_ms / self.requests


_Tool = Callable[[str, int, int, Path], tuple[float, float]]
"""Measures a server at a URL for a rate and a duration, with an empty folder: the p50 of TTFT and of TPOT."""


def measure(rounds: int = ROUNDS) -> Iterator[tuple[str, Sequence[Row]]]:
    """Yields the table of each server; without rows, it is why there are none."""
    peers: dict[str, _Tool] = {}
    if MODEL is not None and GUIDELLM is not None:
        peers["guidellm"] = partial(_guidellm, GUIDELLM, MODEL)
    if MODEL is not None and AIPERF is not None:
        peers["aiperf"] = partial(_aiperf, AIPERF, MODEL)
    if not peers:
        why = (
            "generation: without peers; set INFEROMETER_GENERATION_MODEL and INFEROMETER_GUIDELLM or _AIPERF"
        )
        yield why, ()
    with serving(chunk=3) as server:
        yield (
            "Generation, a server with known times",
            _rows(rounds, f"http://{server.address}", peers, server),
        )
    if VLLM is None:
        yield "generation: without vLLM; INFEROMETER_VLLM_URL is the address of one", ()
    else:
        yield "Generation, vLLM", _rows(rounds, VLLM, peers, None)


def _rows(rounds: int, url: str, peers: Mapping[str, _Tool], server: Serving | None) -> list[Row]:
    tools: dict[str, _Tool] = {"ours": _ours, "ours again": _ours, **peers}
    calls = {
        (name, rate): partial(_run, tool, url, rate, server) for name, tool in tools.items() for rate in RATES
    }
    taken = interleaved(rounds, calls)
    rows = []
    for rate in RATES:
        ours = taken["ours", rate]
        if server is not None:
            p99 = ", ".join(f"{name} {median(run.lag_ms for run in taken[name, rate]):.2f}" for name in tools)
            rows.append(
                Row(f"{rate}/s: p99 of the lag / 1 ms", [run.lag_ms for run in ours], "≤ 1", f"{p99} ms")
            )
        for name in tools:
            if name != "ours":
                rows += _beside(f"{rate}/s", name, ours, taken[name, rate])
    return rows


def _beside(at: str, name: str, ours: Sequence[Figures], theirs: Sequence[Figures]) -> Iterator[Row]:
    for what, figure, aim in (
        ("p50 of TTFT", "ttft_ms", "≤ 1"),
        ("p50 of TPOT", "tpot_ms", "≤ 1"),
        ("processor time of a request", "request_cpu_ms", "≤ 0.33"),
    ):
        over, under = ([getattr(run, figure) for run in runs] for runs in (ours, theirs))
        detail = f"{median(over):.2f} / {median(under):.2f} ms"
        yield Row(f"{at}: {what} / {name}", divided(over, under), "" if name == "ours again" else aim, detail)


def _run(tool: _Tool, url: str, rate: int, server: Serving | None) -> Figures:
    if server is not None:
        server.sent()
    _, _, short_ms = _timed(tool, url, rate, SHORT_S)
    if server is not None:
        server.sent()
    ttft_ms, tpot_ms, cpu_ms = _timed(tool, url, rate, RUN_S)
    found = Figures(ttft_ms, tpot_ms, rate * (RUN_S - SHORT_S), cpu_ms - short_ms)
    if server is None:
        return found
    received_ns = np.array([each.received_ns for each in server.sent()][-rate * RUN_S + 1 :])
    late_ns = received_ns - np.arange(len(received_ns)) * (1e9 / rate)
    lag_ms = float(np.percentile(late_ns - late_ns.min(), 99) / 1e6)
    return Figures(found.ttft_ms, found.tpot_ms, found.requests, found.cpu_ms, lag_ms)


def _timed(tool: _Tool, url: str, rate: int, seconds: int) -> tuple[float, float, float]:
    """A tool's p50 of TTFT and TPOT, and the processor time of its processes, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ttft_ms, tpot_ms = tool(url, rate, seconds, Path(folder))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return ttft_ms, tpot_ms, used_s * 1e3


def _called(command: Sequence[str], allowed: Sequence[int] = (0,), **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    assert done.returncode in allowed, f"{command[0]}: {done.stdout[-500:]}{done.stderr[-500:]}"
    return done.stdout


def _ours(url: str, rate: int, seconds: int, folder: Path) -> tuple[float, float]:
    home = {"AGENT_DATA_DIR": str(folder), "XDG_CONFIG_HOME": str(folder)}
    load = [f"--rate={rate}", "--arrival=constant", f"--duration={seconds}", "--warmup=1"]
    lengths = [f"--prompt_tokens={_PROMPT}", f"--output_tokens={_OUTPUT}", "--ignore_eos"]
    measured = [
        *_AGENT,
        "measure",
        "generation",
        f"--agent=openai+{url}",
        "--model_name=tiny",
        *load,
        *lengths,
    ]
    _called(measured, (0, _LATE, _DISTURBED), **home)
    [row] = json.loads(_called([*_AGENT, "info", "evaluation", "generation", "-f", "json"], **home))
    return row["ttft_ms_p50"], row["tpot_ms_p50"]


def _guidellm(
    command: str, model: str, url: str, rate: int, seconds: int, folder: Path
) -> tuple[float, float]:
    found = folder / "found.json"
    data = f"kind=synthetic_text,prompt_tokens={_PROMPT},output_tokens={_OUTPUT}"
    options = {
        "--backend": f"kind=openai_http,target={url},model=tiny",
        "--tokenizer": f"kind=hf_auto,model={model}",
        "--data": data,
        "--profile": f"kind=constant,rate={rate}",
        "--constraint": f"kind=max_duration,seconds={seconds}",
        "--output": f"kind=json,path={found}",
    }
    given = [each for pair in options.items() for each in pair]
    _called([command, "run", *given, "--disable-console"], HF_HUB_OFFLINE="1")
    [benchmark] = json.loads(found.read_text(encoding="utf-8"))["benchmarks"]
    metrics: Mapping[str, Any] = benchmark["metrics"]
    ttft_ms, tpot_ms = (
        float(metrics[name]["successful"]["median"])
        for name in ("time_to_first_token_ms", "inter_token_latency_ms")
    )
    return ttft_ms, tpot_ms


def _aiperf(command: str, model: str, url: str, rate: int, seconds: int, folder: Path) -> tuple[float, float]:
    load = [f"--request-rate={rate}", "--arrival-pattern=constant", f"--request-count={rate * seconds}"]
    lengths = [f"--isl={_PROMPT}", f"--osl={_OUTPUT}", "--extra-inputs=ignore_eos:true"]
    server = ["--model=tiny", f"--url={url}", "--endpoint-type=chat", "--streaming"]
    quiet = ["--ui=none", "--no-gpu-telemetry", "--no-server-metrics", f"--output-artifact-dir={folder}"]
    tokens = [f"--tokenizer={Path(model).resolve()}", "--use-server-token-count"]
    _called([command, "profile", *server, *load, *lengths, *tokens, *quiet])
    found = json.loads((folder / "profile_export_aiperf.json").read_text(encoding="utf-8"))
    return found["time_to_first_token"]["p50"], found["inter_token_latency"]["p50"]
