"""``agent measure generation`` beside guidellm and aiperf by turns, with known times and on real servers.

Both peers run in environments of their own: ``INFEROMETER_GUIDELLM`` and ``INFEROMETER_AIPERF`` name their
commands (``python -m venv peer && peer/bin/pip install guidellm==0.8.1``; ``aiperf==0.13.0``), and
``INFEROMETER_GENERATION_MODEL`` a folder of Hugging Face's format whose tokenizer they make prompts with.
``INFEROMETER_GENERATION_SERVERS`` names servers of this folder as ``NAME=MODEL@URL,…``:
``vLLM=tiny@http://127.0.0.1:8000``, ``transformers=/models/tiny@http://localhost:8001`` (``transformers
serve``), ``llama.cpp=tiny.gguf@http://127.0.0.1:8002``. The known server needs none. All send the same
constant rate of prompts of the same words, greedily, and ask for all tokens, which transformers refuses.

Every run has prompts of its own: a server has those of an earlier run in its cache (llama.cpp, vLLM). Start
llama.cpp with ``--cache-ram 0``: it becomes slower run by run with the prompts that it keeps.

The lag of the known server is how much later each request came than the schedule that begins with the most
punctual one; of real servers, only our own is known, as we stored it. ``bare`` is how late a thread that does
nothing else wakes up at those times, by turns with the tools: the machine's part. The processor time of a
request is what a run of ``LONG_S`` takes more than a run of ``SHORT_S``, so that imports and set-up do not
count. Our TTFT begins when a request was due, and that of the peers when it was sent.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np

from inferometer.evaluators.kinds.generation.measurement import GenerationSummary
from inferometer.evaluators.load.issuer import prompt_wakeups
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_store
from tests.integration.generation_truth import Serving, serving
from tests.perf.ratios import Row, divided, interleaved

GUIDELLM, AIPERF = os.environ.get("INFEROMETER_GUIDELLM"), os.environ.get("INFEROMETER_AIPERF")
MODEL, SERVERS = (os.environ.get(f"INFEROMETER_GENERATION_{name}") for name in ("MODEL", "SERVERS"))
ROUNDS, LEAST_S, SHORT_S, LONG_S, REQUESTS = 3, 8, 1, 40, 120
RATES = (5, 20, 50)
TRANSFORMERS, TRANSFORMERS_RATES = "transformers", (2, 3)
"""``transformers serve`` answers one request at a time, and knows no ``ignore_eos``."""
_PROMPT, _OUTPUT = 54, 16
"""Tokens, without those of the template of chats."""
_WORDS = ("the", "of", "and", "to", "in", "is", "was", "for", "on", "that")  # of one token each
_AGENT = [sys.executable, "-c", "from inferometer.client.cli.main import main; main()"]
_HOME = {"AGENT_DATA_DIR": "{}", "XDG_CONFIG_HOME": "{}"}
_LATE, _DISTURBED = 6, 8
_BARE = "bare"
_SEEDS = count(int(time.time()))
_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Figures:
    """What a tool says of a run and what it took, in milliseconds, and how late the known server got it."""

    ttft: float
    tpot: float
    cpu: float
    lag: float = float("inf")


@dataclass(frozen=True)
class Server:
    """A server of OpenAI's protocol."""

    name: str
    model: str
    url: str

    @classmethod
    def parse(cls, text: str) -> Server:
        """Reads ``NAME=MODEL@URL``."""
        name, _, rest = text.partition("=")
        return cls(name, *rest.split("@"))

    @property
    def rates(self) -> tuple[int, ...]:
        """What it can keep up with on two cores."""
        return TRANSFORMERS_RATES if self.name == TRANSFORMERS else RATES

    @property
    def ignores_eos(self) -> bool:
        """Whether it can generate all tokens that are asked for."""
        return self.name != TRANSFORMERS


@dataclass(frozen=True)
class Tool:
    """A program that measures a server.

    Attributes:
        command: From the server, a rate, a duration and an empty folder to the command.
        read: From the folder to the p50 of TTFT and of TPOT in milliseconds, and the p99 of the lag if known.
        environment: Added to that of this process; ``{}`` is the folder.
        allowed: Its exit codes.
    """

    command: Callable[[Server, int, int, Path], Sequence[str]]
    read: Callable[[Path], tuple[float, ...]]
    environment: Mapping[str, str]
    allowed: Sequence[int] = (0,)

    def run(self, at: Server, rate: int, seconds: int, known: Serving | None) -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            if known is not None:
                known.sent()
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            environment = {name: value.format(folder) for name, value in self.environment.items()}
            _called(self.command(at, rate, seconds, Path(folder)), environment, self.allowed)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            ttft, tpot, *lag = self.read(Path(folder))
            found = Figures(ttft, tpot, used_s * 1e3, *lag)
        if known is None or seconds == SHORT_S:
            return found
        received_ns = np.array([each.received_ns for each in known.sent()][1 - rate * seconds :])
        late_ns = received_ns - np.arange(len(received_ns)) * (1e9 / rate)
        return replace(found, lag=float(np.percentile(late_ns - late_ns.min(), 99) / 1e6))


def measure(rounds: int = ROUNDS) -> Iterator[tuple[str, Sequence[Row]]]:
    """Yields the table of each server; without rows, it is why there are none."""
    peers: dict[str, Tool] = {}
    if MODEL is not None and GUIDELLM is not None:
        command = partial(_guidellm, GUIDELLM, MODEL)
        peers["guidellm"] = Tool(command, _guidellm_figures, {"HF_HUB_OFFLINE": "1"})
    if MODEL is not None and AIPERF is not None:
        peers["aiperf"] = Tool(partial(_aiperf, AIPERF, MODEL), _aiperf_figures, {})
    if not peers:
        why = (
            "generation: without peers; set INFEROMETER_GENERATION_MODEL and INFEROMETER_GUIDELLM or _AIPERF"
        )
        yield why, ()
    with serving(chunk=3) as known:
        at = Server("known", "tiny", f"http://{known.address}")
        yield "Generation, a server with known times", _rows(rounds, at, peers, known)
    if SERVERS is None:
        yield "generation: without real servers; set INFEROMETER_GENERATION_SERVERS", ()
    for at in map(Server.parse, filter(None, (SERVERS or "").split(","))):
        yield f"Generation, {at.name}", _rows(rounds, at, peers, None)


def _rows(rounds: int, at: Server, peers: Mapping[str, Tool], known: Serving | None) -> list[Row]:
    ours = Tool(_ours, _our_figures, _HOME, (0, _LATE, _DISTURBED))
    tools = {"ours": ours, "ours again": ours, **peers}
    short, long = (at.rates[0], SHORT_S), (at.rates[1], LONG_S)
    seconds = {rate: max(LEAST_S, REQUESTS // rate) for rate in at.rates} | dict([long])
    runs = [short, *seconds.items()]
    taken = interleaved(
        rounds,
        {(name, run): partial(tool.run, at, *run, known) for name, tool in tools.items() for run in runs}
        | {(_BARE, run): partial(_bare, run[0]) for run in runs[1:]},
    )

    def row(what: str, aim: str, figures: Sequence[Sequence[float]]) -> Row:
        over, under = figures
        return Row(what, divided(over, under), aim, f"{median(over):.2f} / {median(under):.2f} ms")

    def cpu_ms(name: str) -> Sequence[float]:
        requests = long[0] * long[1] - short[0] * short[1]
        both = zip(taken[name, long], taken[name, short], strict=True)
        return [(more.cpu - less.cpu) / requests for more, less in both]

    rows, others = [], [name for name in tools if name != "ours"]
    for run in runs[1:]:
        rate = f"{run[0]}/s"
        lags = {name: [found.lag for found in taken[name, run]] for name in (*tools, _BARE)}
        told = ", ".join(f"{name} {median(of):.2f}" for name, of in lags.items() if np.isfinite(of).all())
        rows.append(Row(f"{rate}: p99 of the lag / 1 ms", lags["ours"], "≤ 1", f"{told} ms"))
        for name in others:
            for what in ("ttft", "tpot"):
                both = [[getattr(each, what) for each in taken[of, run]] for of in ("ours", name)]
                if all(both[1]) and np.isfinite(both).all():  # 0: came at once; never: a backlog
                    aim = "" if name == "ours again" else "≤ 1"
                    rows.append(row(f"{rate}: p50 of {what.upper()} / {name}", aim, both))
    for name in others:
        aim = "" if name == "ours again" else "≤ 0.33"
        rows.append(row(f"processor time of a request / {name}", aim, [cpu_ms("ours"), cpu_ms(name)]))
    return rows


def _bare(rate: int) -> Figures:
    began_ns, late_ns = time.perf_counter_ns(), []
    with prompt_wakeups():
        for due_ns in began_ns + np.arange(1, rate * LEAST_S + 1) * 10**9 // rate:
            time.sleep(max(due_ns - time.perf_counter_ns(), 0) / 1e9)
            late_ns.append(time.perf_counter_ns() - due_ns)
    return Figures(*[float("nan")] * 3, float(np.percentile(late_ns, 99)) / 1e6)


def _called(command: Sequence[str], environment: Mapping[str, str], allowed: Sequence[int] = (0,)) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    assert done.returncode in allowed, f"{command[0]}: {done.stdout[-500:]}{done.stderr[-500:]}"
    return done.stdout


def _prompts(rate: int, seconds: int, name: str, folder: Path) -> Path:
    """Returns a file with the prompts of a run, each an object with one entry."""
    words, path = np.random.default_rng(next(_SEEDS)), folder / "prompts.jsonl"
    texts = [" ".join(words.choice(_WORDS, _PROMPT)) for _ in range(rate * seconds)]
    path.write_text("\n".join(json.dumps({name: each}) for each in texts), encoding="utf-8")
    return path


def _ours(at: Server, rate: int, seconds: int, folder: Path) -> Sequence[str]:
    load = [f"--rate={rate}", "--arrival=constant", f"--duration={seconds}", "--warmup=1"]
    lengths = [f"--output_tokens={_OUTPUT}", *["--ignore_eos"] * at.ignores_eos]
    lengths += [f"--prompts={_prompts(rate, seconds, 'prompt', folder)}"]
    server = [f"--agent=openai+{at.url}", f"--model_name={at.model}"]
    return [*_AGENT, "measure", "generation", *server, *load, *lengths]


def _our_figures(folder: Path) -> tuple[float, float, float]:
    with closing(open_store(None, "inferometer", folder)) as store:
        [evaluation] = store.find(EvaluationFilter())
    summary, run = GenerationSummary(evaluation.measurement), evaluation.measurement.run
    p50s = [float("nan") if each.p50_ns is None else each.p50_ns for each in (summary.ttft, summary.tpot)]
    return p50s[0] / 1e6, p50s[1] / 1e6, float(np.percentile(run.queries.lag_ns, 99)) / 1e6


def _guidellm(command: str, model: str, at: Server, rate: int, seconds: int, folder: Path) -> Sequence[str]:
    backend = f"extras.body.temperature=0,max_tokens={_OUTPUT}"
    if at.ignores_eos:
        backend += ",extras.body.ignore_eos=true"
    options = {
        "--backend": f"kind=openai_http,target={at.url},model={at.model},{backend}",
        "--tokenizer": f"kind=hf_auto,model={model}",
        "--data": f"kind=json_file,path={_prompts(rate, seconds, 'prompt', folder)}",
        "--seed": f"kind=static,value={next(_SEEDS)}",
        "--profile": f"kind=constant,rate={rate}",
        "--constraint": f"kind=max_duration,seconds={seconds}",
        "--output": f"kind=json,path={folder / 'found.json'}",
    }
    return [command, "run", *(each for pair in options.items() for each in pair), "--disable-console"]


def _guidellm_figures(folder: Path) -> tuple[float, float]:
    [benchmark] = json.loads((folder / "found.json").read_text(encoding="utf-8"))["benchmarks"]
    ttft, tpot = (
        benchmark["metrics"][f"{name}_ms"] for name in ("time_to_first_token", "inter_token_latency")
    )
    return ttft["successful"]["median"], tpot["successful"]["median"]


def _aiperf(command: str, model: str, at: Server, rate: int, seconds: int, folder: Path) -> Sequence[str]:
    load = [f"--request-rate={rate}", "--arrival-pattern=constant", f"--request-count={rate * seconds}"]
    lengths = [f"--osl={_OUTPUT}", "--extra-inputs=temperature:0", f"--extra-inputs=max_tokens:{_OUTPUT}"]
    lengths += ["--extra-inputs=ignore_eos:true"] * at.ignores_eos
    lengths += [
        f"--input-file={_prompts(rate, seconds, 'text', folder)}",
        "--custom-dataset-type=single_turn",
    ]
    server = [f"--model={at.model}", f"--url={at.url}", "--endpoint-type=chat", "--streaming"]
    quiet = ["--ui=none", "--no-gpu-telemetry", "--no-server-metrics", f"--output-artifact-dir={folder}"]
    tokens = [f"--tokenizer={Path(model).resolve()}", "--use-server-token-count"]
    return [command, "profile", *server, *load, *lengths, *tokens, *quiet]


def _aiperf_figures(folder: Path) -> tuple[float, float]:
    found = json.loads((folder / "profile_export_aiperf.json").read_text(encoding="utf-8"))
    return found["time_to_first_token"]["p50"], found["inter_token_latency"]["p50"]
