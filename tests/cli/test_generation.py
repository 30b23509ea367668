"""``agent measure generation`` in this process, against a server with known times, and what can go wrong."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

import inferometer
from inferometer.agent.inference.registry import FrameworkEntry
from inferometer.client.cli.output import INVALID
from inferometer.evaluators.kinds.generation.kind import GenerationKind
from inferometer.evaluators.load.queries import Outcome
from inferometer.manifests.files import BUILTIN
from tests.cli.conftest import Agent
from tests.integration.generation_truth import Serving, serving
from tools.export_llama import MODEL, export

MEASURE = ("measure", "generation", "--warmup=1")
ALL_SIX = "requests +(" + "|".join(rf"{6 - n} \({6 - n} answered\), after {n}" for n in range(1, 6)) + ") of"
"""How many of them are in the empty start depends on the clock."""


def at(server: Serving) -> str:
    return f"--agent=openai+http://{server.address}"


@pytest.mark.real_time
def test_a_served_model_is_measured_stored_and_told(agent: Agent, tmp_path: Path) -> None:
    """60 requests with reasoning, a role chunk, and chunks of three tokens of 1 ms."""
    load = ("--rate=40", "--arrival=constant", "--max_queries=60", "--output_tokens=12", "--prompt_tokens=20")
    bounds = ("--ttft_bound=500", "--tpot_bound=100", "--e2e_bound=1000")
    with serving(first_ms=20, token_ms=1, chunk=3, reasoning=3) as server:
        found = agent(*MEASURE, at(server), *load, *bounds)

    assert found.code in {0, INVALID}, found.stderr  # the latter if other processes have delayed the sender
    assert found.figure("tokens") == "20.0 in, 12.0 out of 12.0 planned a request, counted by the server"
    [row] = agent("info", "evaluation", "generation", "-f", "csv").rows
    assert (row["model_name"], row["answered"], row["failed"]) == ("tiny", row["requests"], "0")
    assert int(row["requests"]) == 54  # without the first tenth
    figures = {name: float(row[name]) for name in row if name.endswith(("_ms_p50", "_per_s", "_share"))}
    assert figures["ttft_ms_p50"] == pytest.approx(20, abs=5)
    assert figures["ttfo_ms_p50"] == pytest.approx(23, abs=5)
    assert figures["tpot_ms_p50"] == pytest.approx(9 / 11, rel=0.3)
    assert figures["icl_ms_p50"] == pytest.approx(3, rel=0.3)
    assert figures["e2e_ms_p50"] == pytest.approx(29, abs=5)
    assert figures["requests_per_s"] == pytest.approx(40, rel=0.1)
    assert figures["output_tokens_per_s"] == pytest.approx(480, rel=0.1)
    assert figures["goodput_per_s"] == pytest.approx(40, rel=0.1)
    assert figures["kept_share"] == 1
    identity = found.figure("evaluation")
    shown = agent("info", "evaluation", "show", identity, "-f", "json")
    document = json.loads(shown.stdout)["generation"]
    assert document["finish_reasons"] == {"length": 60}
    assert document["options"]["max_queries"] == 60
    page = tmp_path / "page.html"
    assert agent("report", "-o", str(page)).code == 0
    parts = re.findall(r'<script type="text/plain"[^>]*>([^<]*)</script>', page.read_text(encoding="utf-8"))
    text = "".join(gzip.decompress(base64.b64decode(part)).decode() for part in parts)
    assert f"agent measure generation {at(server)} " in text
    assert "Time to first token and per token" in text


@pytest.mark.real_time
def test_a_search_finds_the_rate_that_a_server_can_serve(agent: Agent) -> None:
    """The server serves one request at a time; at even gaps, its queue grows above 1 / (its own time)."""
    load = ("--arrival=constant", "--rate=20", "--output_tokens=6", "--time_budget=10", "--min_duration=0.5")
    bounds = ("--ttft_bound=150", "--tpot_bound=100", "--percentile=90", "--warmup=1")
    with serving(first_ms=15, token_ms=2, parallel=1) as server:
        found = agent("measure", "generation_search", at(server), *load, *bounds)
        asked = [sent for sent in server.sent() if sent.tokens == 6]

    served_ms = [(sent.last_ns - sent.turn_ns) / 1e6 for sent in asked]
    prompts = Counter(sent.body["messages"][0]["content"] for sent in asked)
    assert len(prompts) >= min(len(asked), 1024) - 2  # but for the trial and the warm-up, none is repeated

    assert found.code in {0, INVALID}, found.stderr
    rows = {row["bounded"]: row for row in agent("info", "evaluation", "generation_search", "-f", "csv").rows}
    assert rows.keys() == {"TTFT", "TPOT"}
    assert {row["limited_by"] for row in rows.values()} == {"TTFT"}
    low, high = (float(rows["TPOT"][f"max_qps_{end}"]) for end in ("low", "high"))
    assert 0.85 * low <= 1e3 / median(served_ms) <= 1.15 * high
    assert high < 4 * low
    assert rows["TPOT"]["own_max_qps_high"] == ""  # all rates kept it
    identity = rows["TPOT"]["id"]
    document = json.loads(agent("info", "evaluation", "show", identity, "-f", "json").stdout)["load"]
    assert len(document["probes"]) == int(rows["TPOT"]["probes"])
    assert document["probes"][0]["latency_ms_p50"] == pytest.approx(2, rel=0.5)


def test_each_run_has_prompts_of_its_own_unless_it_has_a_seed(agent: Agent) -> None:
    load = ("--concurrency=1", "--max_queries=8", "--output_tokens=2", "--prompt_tokens=20", "--warmup=0")
    seeds, prompts = [], []
    with serving(first_ms=1, token_ms=0.1) as server:
        for given in ((), (), ("--seed=7",), ("--seed=7",)):
            before = len(server.sent())
            found = agent(*MEASURE, at(server), *load, *given)
            assert found.code == 0, found.stderr
            shown = agent("info", "evaluation", "show", found.figure("evaluation"), "-f", "json")
            seeds.append(json.loads(shown.stdout)["generation"]["options"]["seed"])
            prompts.append({str(each.body["messages"]) for each in server.sent()[before:][-8:]})

    assert len(set(seeds)) == 3
    assert seeds[2:] == [7, 7]
    assert [len(each) for each in prompts] == [8] * 4
    assert not prompts[0] & prompts[1]
    assert not prompts[1] & prompts[2]
    assert prompts[2] == prompts[3]


@pytest.mark.parametrize("cached", [0, 19])
def test_prompts_that_the_server_knew_are_told(agent: Agent, cached: int) -> None:
    load = ("--concurrency=3", "--max_queries=12", "--output_tokens=5", "--prompt_tokens=20")
    with serving(first_ms=1, token_ms=0.1, cached=cached) as server:
        found = agent(*MEASURE, at(server), *load)

    assert found.code == 0, found.stderr
    assert found.figure("tokens").startswith(f"20.0 in ({cached}.0 of them cached), 5.0 out of 5.0 planned")
    assert ("in its cache, maybe from a run with the same --seed" in found.stdout) is (cached == 19)
    [row] = agent("info", "evaluation", "generation", "-f", "csv").rows
    assert row["cached_tokens"] == f"{cached}.0"


def test_the_series_of_the_server_are_kept_beside_the_requests(agent: Agent, tmp_path: Path) -> None:
    load = ("--concurrency=3", "--max_queries=12", "--output_tokens=5", "--server_statistics_hz=20")
    with serving(first_ms=20, token_ms=5, parallel=1) as server:
        found = agent(*MEASURE, at(server), *load, f"--metrics_url=http://{server.address}/metrics")
        missing = agent(*MEASURE, at(server), *load, f"--metrics_url=http://{server.address}/stats")

    assert found.code == 0, found.stderr
    agent(
        "info", "evaluation", "generation", f"--id={found.figure('evaluation')}", f"--plot={tmp_path}/x.svg"
    )
    drawn = (tmp_path / "x.svg").read_text(encoding="utf-8")
    assert re.search(r"in flight, mean [01](\.\d+)?, most 1", drawn)
    assert re.search(r"queue length, mean [012](\.\d+)?, most 2", drawn)
    assert "The requests during this run" in drawn
    assert "statistics of the server are missing: metrics at http" in missing.stderr
    wrong = agent(*MEASURE, "--metrics_url=host:8002", "--publish=false")
    assert wrong.error.endswith('metrics_url "host:8002" is not http://HOST:PORT/metrics')


def test_a_search_in_this_process_is_plausible() -> None:
    given = {"ttft_bound_ms": 300.0, "e2e_bound_ms": 400.0, "percentile": 50.0, "time_budget_s": 6.0}
    more = {"rate_qps": 20.0, "min_duration_s": 0.5, "output_tokens": 4, "warm_up_queries": 1}
    found = inferometer.measure_group("generation_search", publish=False, **given, **more)

    assert [each.measurement.name for each in found] == ["TTFT", "e2e"]
    assert len({each.group_id for each in found}) == 1
    one, other = (each.measurement for each in found)
    assert one.answer == other.answer
    assert one.answer.rate_qps > 5
    for first, whole in zip(one.probes, other.probes, strict=True):
        assert first.checksum == whole.checksum
        assert (first.queries.latency_ns <= whole.queries.latency_ns).all()


@pytest.mark.parametrize(
    ("behaviour", "options", "error"),
    [
        ({}, (), "a search needs a bound; give ttft_bound, tpot_bound, e2e_bound or scenario"),
        ({}, ("--ttft_bound=50", "--concurrency=2"), "--concurrency"),
        ({}, ("--ttft_bound=50", "--arrival=ramp"), "arrival ramp has no steady rate to search for"),
        ({}, ("--ttft_bound=50", "--time_budget=1"), "it must be at least 8.4 s"),
        ({}, ("--ttft_bound=50", "--percentile=100"), "percentile"),
        ({"usage": False}, ("--tpot_bound=5",), "tpot_bound: the server does not tell how many tokens"),
        ({"breaks": "503"}, ("--ttft_bound=50", "--prompt_tokens=9"), "is not available"),
    ],
)
def test_what_cannot_be_searched_for_is_told_in_a_line(
    agent: Agent, behaviour: dict[str, object], options: tuple[str, ...], error: str
) -> None:
    with serving(**behaviour) as server:
        found = agent("measure", "generation_search", at(server), *options, "--publish=false")

    assert found.code != 0
    assert error in found.stderr.splitlines()[-1], found.stderr


@pytest.mark.parametrize(
    ("behaviour", "options", "summary"),
    [
        ({}, ("--endpoint=completions", "--prompt_tokens=9"), r"tokens +9.0 in, 5.0 out of 5.0 planned"),
        ({"usage": False}, (), r"TPOT +not known: nobody counts the tokens; give --tokenizer"),
        ({"most_tokens": 2}, (), r"tokens .*2.0 out of 5.0 planned .*; answers that are shorter: 5"),
        ({"most_tokens": 2}, ("--ignore_eos",), r"tokens .*5.0 out of 5.0 planned a request, counted by"),
        ({"breaks": "error", "every": 2}, (), r"3 failed: the stream has an error: the engine has died"),
        ({"breaks": "cut", "every": 2}, (), r"3 failed: the connection was lost; the server was stopped"),
        ({"closes": True, "crlf": True}, (), ALL_SIX),
        ({"split_ms": 1}, (), ALL_SIX),
        ({"models": ["a", "tiny"]}, ("--model_name=tiny",), ALL_SIX),
        ({"key": "sesame"}, ("--secret=sesame",), ALL_SIX),
    ],
)
def test_servers_differ(
    agent: Agent, behaviour: dict[str, object], options: tuple[str, ...], summary: str
) -> None:
    with serving(first_ms=2, token_ms=1, breaks_after=2, **behaviour) as server:
        load = ("--concurrency=1", "--max_queries=6", "--output_tokens=5", "--warmup=0", "--publish=false")
        found = agent(
            "measure", "generation", at(server), *load, *_without_the_first_break(behaviour), *options
        )

    assert found.code == 0, found.stderr
    assert re.search(summary, found.stdout), found.stdout


def _without_the_first_break(behaviour: dict[str, object]) -> tuple[str, ...]:
    """Prompts of a file need no request before the one that tries the server, which is number 1."""
    if "breaks" not in behaviour:
        return ()
    path = Path(os.environ["AGENT_DATA_DIR"]) / "prompts.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '{"prompt": "a b"}\n\n{"messages": [{"role": "user", "content": "c"}], "output_tokens": 4}\n'
    )
    return (f"--prompts={path}",)


@pytest.mark.parametrize(
    ("breaks", "reason"),
    [
        ("429", "resource exhausted: too busy for …"),
        ("503", "is not available: too busy for …"),
        ("error", "the stream has an error: the engine has died…"),
    ],
)
def test_a_server_that_repeats_its_key_does_not_reveal_it(agent: Agent, breaks: str, reason: str) -> None:
    load = ("--concurrency=2", "--max_queries=8", "--output_tokens=5", "--warmup=1", "--secret=sesame")
    with serving(first_ms=2, token_ms=1, key="sesame", breaks=breaks, every=2) as server:
        prompts = _without_the_first_break({"breaks": breaks})
        found = agent("measure", "generation", at(server), *load, *prompts)

    assert found.code == 0, found.stderr
    assert re.search(rf"[3-5] failed: {re.escape(reason)}", found.stdout), found.stdout
    document = agent("info", "evaluation", "show", found.figure("evaluation"), "-f", "json").stdout
    assert reason in json.loads(document)["generation"]["failure_reasons"]
    stored = b"".join(each.read_bytes() for each in Path(os.environ["AGENT_DATA_DIR"]).glob("*.db*"))
    assert b"sesame" not in stored + f"{found.stdout}{found.stderr}{document}".encode()


@pytest.mark.parametrize(
    ("behaviour", "options", "error"),
    [
        ({"models": ["a", "b"]}, (), "has 2 models (a, b); name one with --model_name"),
        ({}, ("--model_name=tny",), 'has no model "tny"; did you mean "tiny"?'),
        ({"key": "sesame"}, (), "refuses the key: Incorrect API key provided; give it with --secret_file"),
        ({"key": "sesame"}, ("--secret=wrong",), "refuses the key: Incorrect API key provided"),
        ({"breaks": "error", "breaks_after": 0}, (), "the stream has an error: the engine has died"),
        ({}, ("--prompt_tokens=3",), "a prompt is to have 3 tokens, but one of a single word already has 5"),
        ({}, ("--prompts=missing.jsonl",), "missing.jsonl"),
        (
            {},
            ("--concurrency=1", "--rate=2"),
            "concurrency sends a request when an answer ends; leave out rate",
        ),
        ({}, ("--rate=0",), "rate"),
        ({}, ("--agent=127.0.0.1:1",), 'agent address "127.0.0.1:1" is not openai+http://host:port'),
        ({}, ("--agent=openai+http://127.0.0.1:1",), "connection refused; is the server running"),
        ({}, ("--tokenizer=missing",), "missing"),
    ],
)
def test_what_cannot_be_measured_is_told_in_a_line(
    agent: Agent, behaviour: dict[str, object], options: tuple[str, ...], error: str
) -> None:
    with serving(**behaviour) as server:
        found = agent(*MEASURE, at(server), *options, "--publish=false")

    assert found.code != 0
    assert error in found.stderr.splitlines()[-1], found.stderr


def test_answers_that_are_too_late_are_neither_waited_for_nor_reported_as_faults(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    load = ("--concurrency=1", "--max_queries=3", "--timeout_ms=50", "--warmup=0", "--publish=false")
    with serving(first_ms=400) as server:
        found = agent("measure", "generation", at(server), *load)
        given = {"concurrency": 1, "max_queries": 1, "timeout_ms": 50.0, "warm_up_queries": 0}
        late = inferometer.measure("generation", agent=at(server)[8:], publish=False, **given).measurement

    assert late.run.queries.outcome.tolist() == [Outcome.TIMED_OUT]
    assert (list(late.streams.error), len(late.streams.chunk_ns)) == ([""], 0)
    assert "timed_out" in found.figure("requests")
    assert not [record for record in caplog.records if record.exc_info]


def test_a_tokenizer_counts_what_the_server_does_not_tell(agent: Agent, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"one": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    load = ("--concurrency=1", "--max_queries=6", "--output_tokens=5", "--warmup=0", "--publish=false")
    with serving(first_ms=2, token_ms=1, chunk=2, usage=False) as server:
        found = agent(
            "measure", "generation", at(server), *load, f"--tokenizer={tmp_path}", "--prompt_tokens=9"
        )

    assert found.code == 0, found.stderr
    told = f"not known in, 5.0 out of 5.0 planned a request, counted by the tokenizer {tmp_path}"
    assert found.figure("tokens") == told
    assert "6 synthetic prompts of 9 tokens" in found.stdout
    assert "the server does not tell how many tokens it generated (usage): the tokenizer" in found.stderr


def test_an_evaluation_over_a_dataset_sends_the_user_to_generation(agent: Agent) -> None:
    found = agent("predict", "dataset", "--agent=openai+http://127.0.0.1:1")

    assert found.error.endswith("generates text; measure it by agent measure generation")


@pytest.mark.parametrize("command", ["dataset", "workload"])
def test_a_language_model_makes_no_predictions(agent: Agent, command: str) -> None:
    found = agent("predict", command, "--model_name=ToyLlama")

    assert found.code != 0
    assert "ToyLlama 1.0 generates text and makes no predictions; measure it with" in found.error


def test_a_stop_keeps_what_was_measured(agent: Agent) -> None:
    command = [sys.executable, "-c", "from inferometer.client.cli.main import main; main()"]
    with serving(first_ms=5, token_ms=1) as server:
        process = subprocess.Popen(
            [*command, *MEASURE, at(server), "--concurrency=2", "--duration=60"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        asked = 0
        while asked < 20:  # of which few are the warm-up and those that fit the prompts
            asked += len(server.sent())
            assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)

    assert "stopping, without waiting for the answers" in told
    [row] = agent("info", "evaluation", "generation", "-f", "csv", "--include_interrupted").rows
    assert int(row["answered"]) > 0
    assert row["stopped"] == "interrupted"


def test_without_a_server_the_shipped_model_is_measured_and_recorded_as_any_model_here(agent: Agent) -> None:
    load = ("--concurrency=2", "--max_queries=8", "--ignore_eos", "--output_tokens=6", "--prompt_tokens=900")
    chosen = ("--threads=1", "--max_batch_size=2", "--dtype=bfloat16", "--model_version=1.0")
    found = agent(*MEASURE, *load, *chosen)

    assert found.code == 0, found.stderr
    assert found.figure("tokens") == "900.0 in, 6.0 out of 6.0 planned a request, counted by the engine"
    identity = found.figure("evaluation")
    document = json.loads(agent("info", "evaluation", "show", identity, "-f", "json").stdout)
    assert (document["model_name"], document["framework_name"]) == ("ToyLlama", "PyTorch")
    assert document["framework_version"]
    assert (document["agent"], document["threads"], document["precision"]) == ("local", 1, "bfloat16")
    assert document["checksums"].keys() == {"graph", "weights"}
    assert document["generation"]["finish_reasons"] == {"length": 8}


def test_a_measurement_here_repeats_with_its_command() -> None:
    given = {"concurrency": 1, "max_queries": 2, "warm_up_queries": 0, "threads": 1, "max_batch_size": 2}
    evaluation = inferometer.measure("generation", publish=False, precision="float16", **given)

    words = GenerationKind().again(evaluation).words
    assert words[:2] == ("measure", "generation")
    flags = (
        "--dtype=float16",
        "--threads=1",
        "--max_batch_size=2",
        "--concurrency=1",
        "--max_queries=2",
        "--warmup=0",
        f"--seed={evaluation.measurement.options['seed']}",
    )
    assert set(words[2:]) == set(flags)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--model_name=DigitsCNN",), "generates no text: its task is classification, not generation"),
        (("--model_name=ToyLama",), 'unknown model "ToyLama"; did you mean "ToyLlama"?'),
        (("--tokenizer=.",), "tokenizer counts the tokens of a server; leave it out, or give agent"),
        (("--threads=1", "--agent=openai+http://127.0.0.1:1"), "threads is for a model in this process"),
        (("--max_batch_size=2", "--agent=openai+http://127.0.0.1:1"), "leave out max_batch_size or agent"),
        (("--dtype=float16", "--agent=openai+http://127.0.0.1:1"), "leave out dtype or agent"),
        (("--model_version=1.0", "--agent=openai+http://127.0.0.1:1"), "leave out model_version or agent"),
        (("--framework_name=PyTorch", "--agent=openai+http://127.0.0.1:1"), "leave out framework_name or"),
        (("--model_version=2",), 'model "ToyLlama" has no version 2; it has: 1.0'),
        (("--gpu", "--gpu_device_id=99"), "cannot use gpu:99: "),
        (("--prompt_tokens=2040",), "the prompt has 2040 tokens and 32 to generate, but the context of"),
    ],
)
def test_what_cannot_be_measured_here_is_told_in_a_line(
    agent: Agent, options: tuple[str, ...], error: str
) -> None:
    found = agent(*MEASURE, "--max_queries=1", *options, "--publish=false")

    assert found.code != 0
    assert error in found.stderr.splitlines()[-1], found.stderr


def test_without_pytorch_the_shipped_model_says_how_to_install_it(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = FrameworkEntry.installed_version.fget
    without = property(lambda entry: None if entry.name == "PyTorch" else version(entry))  # type: ignore[misc]
    monkeypatch.setattr(FrameworkEntry, "installed_version", without)

    found = agent(*MEASURE, "--publish=false")

    assert (found.code, len(found.stderr.splitlines())) == (3, 1)
    assert "ToyLlama" in found.error
    assert "install one with: pip install" in found.error


def test_an_exported_model_is_measured_in_onnx_runtime(agent: Agent, tmp_path: Path) -> None:
    export(BUILTIN / "models" / "ToyLlama", tmp_path)
    inputs = "[{type: tensor, parameters: {dimensions: [-1], element_type: int64, input_layer: input_ids}}]"
    text = f"kind: model\nname: ToyLlama\nframework: {{name: ONNXRuntime}}\ninputs: {inputs}\n"
    (tmp_path / "toy.yml").write_text(f"{text}output: {{type: generation}}\nmodel: {{graph_path: {MODEL}}}\n")
    load = ("--concurrency=3", "--max_batch_size=3", "--max_queries=9", "--ignore_eos", "--output_tokens=6")
    found = agent(*MEASURE, *load, f"--manifests={tmp_path}", "--framework_name=ONNXRuntime")

    assert found.code == 0, found.stderr
    identity = found.figure("evaluation")
    document = json.loads(agent("info", "evaluation", "show", identity, "-f", "json").stdout)
    assert (document["framework_name"], document["precision"]) == ("ONNXRuntime", None)
    assert document["generation"]["finish_reasons"] == {"length": 9}
