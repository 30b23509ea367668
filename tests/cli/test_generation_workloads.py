"""What ``agent measure generation`` sends of drawn lengths, common prefixes and traces."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import inferometer
from inferometer.evaluators.kinds.generation.kind import GenerationKind
from inferometer.evaluators.kinds.generation.prompts import lengths_of
from inferometer.evaluators.kinds.generation.request import (
    OFFLINE,
    SCENARIOS,
    GenerationRequest,
    GenerationSearchRequest,
)
from inferometer.evaluators.load.queries import Outcome
from inferometer.manifests.errors import ConfigurationError
from tests.cli.conftest import Agent
from tests.integration.generation_server import Sent
from tests.integration.generation_truth import Serving, serving

COUNTING = 1
"""The most tokens of an answer to a request that only counts the tokens of its prompt."""
PROMPTS, OUTPUTS = "uniform:min=20,max=60", "lognormal:mean=6,std=3,min=2,max=12"


def at(server: Serving) -> str:
    return f"openai+http://{server.address}"


def measured(sent: Sequence[Sent]) -> Sequence[Sent]:
    """The requests of the run: without those that count tokens, and the one that tries the server."""
    return [each for each in sent if each.body["max_tokens"] > COUNTING][1:]


def content(sent: Sent) -> list[str]:
    [message] = sent.body["messages"]
    return str(message["content"]).split()


def test_what_is_drawn_is_sent_and_reported(agent: Agent) -> None:
    load = ("--concurrency=2", "--max_queries=40", "--warmup=0", "--seed=5")
    options = (f"--prompt_tokens={PROMPTS}", f"--output_tokens={OUTPUTS}")
    with serving(first_ms=1, token_ms=0.1) as server:
        found = agent("measure", "generation", f"--agent={at(server)}", *load, *options)
        sent = measured(server.sent())

    assert found.code == 0, found.stderr
    inputs = lengths_of("x", PROMPTS).drawn(40, (5, 1))
    outputs = lengths_of("x", OUTPUTS).drawn(40, (5, 2))
    pairs = [(each.prompt_tokens, each.body["max_tokens"]) for each in sent]
    assert sorted(pairs) == sorted(zip(inputs, outputs, strict=True))
    document = agent("info", "evaluation", "show", found.figure("evaluation"), "-f", "json")
    figures = json.loads(document.stdout)["generation"]
    for name, drawn in (("input_tokens", inputs), ("planned_tokens", outputs), ("output_tokens", outputs)):
        counted = drawn[40 - figures["requests"] :]  # without the empty start
        assert figures[name] == pytest.approx(np.mean(counted), abs=0.051)
        assert figures[f"{name}_p90"] == pytest.approx(np.percentile(counted, 90), abs=0.051)
    assert figures["options"]["prompt_tokens"] == PROMPTS
    assert (
        f"40 synthetic prompts of {min(inputs)} to {max(inputs)} (mean {np.mean(inputs):.1f})" in found.stdout
    )


def test_a_measurement_of_drawn_lengths_repeats_with_its_command() -> None:
    given = {"prompt_tokens": PROMPTS, "output_tokens": 3, "prefix_share": 0.5, "prefixes": 2}
    with serving(first_ms=1, token_ms=0.1) as server:
        evaluation = inferometer.measure(
            "generation", agent=at(server), concurrency=1, max_queries=4, publish=False, **given
        )

    words = GenerationKind().again(evaluation).words
    assert {f"--{name}={value}" for name, value in given.items()} <= set(words)


def test_a_share_of_each_prompt_is_one_of_a_few_prefixes() -> None:
    given = {"prompt_tokens": 104, "prefix_share": 0.5, "prefixes": 3, "concurrency": 1, "max_queries": 30}
    with serving(first_ms=1, token_ms=0.1) as server:
        evaluation = inferometer.measure(
            "generation", agent=at(server), output_tokens=2, warm_up_queries=0, publish=False, **given
        )
        sent = measured(server.sent())

    assert {each.prompt_tokens for each in sent} == {104}
    assert len({tuple(content(each)[:48]) for each in sent}) == 3  # half of 104, less the template of 4
    assert len({tuple(content(each)[:52]) for each in sent}) == 30
    seen = evaluation.measurement.prompts
    assert (
        seen == "30 synthetic prompts of 104 tokens, 45.0 % of them as an earlier prompt begins"
    )  # 27 of 60


@pytest.mark.real_time
def test_a_sweep_has_a_run_for_each_number_in_flight(agent: Agent) -> None:
    """The server answers two requests at a time, so that the rate doubles only once."""
    load = ("--concurrency=1,2,4", "--max_queries=24", "--warmup=0", "--output_tokens=4", "--seed=9")
    with serving(first_ms=20, token_ms=1, parallel=2) as server:
        found = agent("measure", "generation", f"--agent={at(server)}", *load)
        sent = server.sent()

    assert found.code == 0, found.stderr
    rows = agent("info", "evaluation", "generation", "-f", "csv").rows
    rows = sorted(rows, key=lambda row: str(row["created_at"]))
    assert [row["arrival"] for row in rows] == [f"closed loop, {n} in flight" for n in (1, 2, 4)]
    one, two, four = (float(row["output_tokens_per_s"]) for row in rows)
    assert two / one == pytest.approx(2, rel=0.3)
    assert four / two == pytest.approx(1, rel=0.3)
    runs = [
        list(run)[1:]  # without the request that tries the server
        for counts, run in groupby(sent, lambda each: each.body["max_tokens"] == COUNTING)
        if not counts
    ]
    assert [len(run) for run in runs] == [24, 24, 24]
    assert [max(in_flight(run)) for run in runs] == [1, 2, 4]
    assert len({" ".join(content(each)) for run in runs for each in run}) == 72  # no cache has them
    shown = [agent("info", "evaluation", "show", str(row["id"]), "-f", "json").stdout for row in rows]
    documents = [json.loads(each) for each in shown]
    assert len({each["group_id"] for each in documents}) == 1
    options = [each["generation"]["options"] for each in documents]
    assert [(each["concurrency"], each["seed"]) for each in options] == [([1], 9), ([2], 10), ([4], 11)]


@pytest.mark.real_time
def test_twice_as_many_are_in_flight_until_the_tokens_grow_no_more(agent: Agent) -> None:
    load = ("--concurrency=1", "--saturate", "--max_queries=40", "--warmup=0", "--output_tokens=4")
    with serving(first_ms=20, token_ms=1, parallel=2) as server:
        found = agent("measure", "generation", f"--agent={at(server)}", *load)

    assert found.code == 0, found.stderr
    rows = agent("info", "evaluation", "generation", "-f", "csv").rows
    rows = sorted(rows, key=lambda row: str(row["created_at"]))
    rates = [float(row["output_tokens_per_s"]) for row in rows]
    assert [row["arrival"] for row in rows] == [f"closed loop, {1 << n} in flight" for n in range(len(rows))]
    assert len(rows) in (3, 4), rates  # 3, but for a hiccup
    grows = [rate > 1.05 * max(rates[:n], default=0) for n, rate in enumerate(rates)]
    assert grows == [True] * (len(rows) - 1) + [False]
    shown = [json.loads(agent("info", "evaluation", "show", row["id"], "-f", "json").stdout) for row in rows]
    assert len({each["group_id"] for each in shown}) == 1
    assert "saturate" not in shown[0]["generation"]["options"]  # each can be repeated alone


def test_a_sweep_that_cannot_tell_says_what_to_give(agent: Agent) -> None:
    load = ("--concurrency=4", "--saturate", "--max_queries=4", "--warmup=0", "--publish=false")
    with serving(first_ms=1, token_ms=0.1) as server:
        found = agent("measure", "generation", f"--agent={at(server)}", *load)

    assert found.code == 0, found.stderr
    told = "closed loop, 4 in flight: too few answers to tell whether more in flight give more tokens/s"
    assert f"{told}; give more --duration or --max_queries" in found.stderr


def test_the_offline_scenario_sends_all_at_once_and_has_the_tokens_of_the_whole_run(agent: Agent) -> None:
    load = ("--scenario=offline", "--max_queries=20", "--warmup=0", "--output_tokens=4")
    with serving(first_ms=300, token_ms=1) as server:
        found = agent("measure", "generation", f"--agent={at(server)}", *load)
        sent = measured(server.sent())

    assert found.code == 0, found.stderr
    assert max(in_flight(sent)) == len(sent) == 20
    [row] = agent("info", "evaluation", "generation", "-f", "csv").rows
    assert f"{float(row['whole_tokens_per_s']):.2f} output tokens/s of the whole run" in found.stdout
    assert 0 < float(row["whole_tokens_per_s"]) <= 80 / 0.3


def test_scenarios_have_the_bounds_of_mlperf() -> None:
    """LoadGen contains the text of its mlperf.conf."""
    loadgen = pytest.importorskip("mlperf_loadgen")
    text = Path(loadgen.__file__).read_bytes()
    found: dict[str, dict[str, int]] = {}
    for name, time, ms in re.findall(rb"\n([\w.-]+)\.Server\.(ttft|tpot)_latency = (\d+)", text):
        benchmark = name.decode()
        kind = "interactive" if benchmark.endswith("-interactive") else "server"
        key = f"{kind}:{benchmark.removesuffix('-interactive')}"
        found.setdefault(key, {})[time.decode()] = int(ms)
    assert {name: (each["ttft"], each["tpot"]) for name, each in found.items()} == {
        name: bounds for name, bounds in SCENARIOS.items() if name != OFFLINE
    }
    request = GenerationRequest(scenario="interactive:llama2-70b", tpot_bound_ms=7.0)
    assert (request.ttft_bound_ms, request.tpot_bound_ms) == (450, 7)
    search = GenerationSearchRequest(scenario="server:llama2-70b")
    assert {name: each.latency_bound_ms for name, each in search.searches.items()} == {
        "TTFT": 2000,
        "TPOT": 200,
    }
    with pytest.raises(ConfigurationError, match="scenario offline has no rate to search for"):
        GenerationSearchRequest(scenario=OFFLINE)


def in_flight(run: Sequence[Sent]) -> list[int]:
    """How many requests were there when each one came."""
    return [sum(other.received_ns <= each.received_ns < other.last_ns for other in run) for each in run]


@pytest.mark.real_time
def test_a_trace_is_sent_at_its_times_with_its_lengths_and_blocks(tmp_path: Path) -> None:
    rows = (
        {"timestamp": 100, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]},
        {"timestamp": 200, "input_length": 1100, "output_length": 2, "hash_ids": [1, 3, 4]},
        {"timestamp": 450, "input_length": 1100, "output_length": 3, "hash_ids": [1, 3, 9]},
        {"timestamp": 500, "input_length": 40},
    )
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with serving(first_ms=1, token_ms=0.1) as server:
        evaluation = inferometer.measure(
            "generation",
            agent=at(server),
            replay=str(path),
            output_tokens=7,
            warm_up_queries=0,
            publish=False,
        )
        sent = measured(server.sent())

    found = evaluation.measurement
    assert [(each.prompt_tokens, each.body["max_tokens"]) for each in sent] == [
        (600, 4),
        (1100, 2),
        (1100, 3),
        (40, 7),
    ]
    assert found.run.queries.scheduled_ns.tolist() == [0, 100_000_000, 350_000_000, 400_000_000]
    since_ms = [(each.received_ns - found.run.began_ns) / 1e6 for each in sent]
    assert since_ms == pytest.approx([0, 100, 350, 400], abs=15)
    assert content(sent[0])[:508] == content(sent[1])[:508]  # with the template of 4 tokens
    assert content(sent[0])[:520] != content(sent[1])[:520]
    assert content(sent[1])[:1020] == content(sent[2])[:1020]
    assert content(sent[1])[:1040] != content(sent[2])[:1040]
    assert found.run.source == "trace trace.jsonl"
    assert evaluation.dataset.checksum.startswith("sha256:")


def conversations(path: Path) -> str:
    rows = ({"turns": ["one", "two", "three"]}, {"turns": ["four", "five"], "output_tokens": 3})
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.mark.real_time
def test_each_turn_follows_the_answer_to_the_one_before(tmp_path: Path) -> None:
    """One user thinks for 50 ms; the server reasons for two tokens, which no later turn repeats."""
    given = {"prompts": conversations(tmp_path / "turns.jsonl"), "concurrency": 1, "max_queries": 8}
    with serving(first_ms=10, token_ms=1, reasoning=2) as server:
        evaluation = inferometer.measure(
            "generation", agent=at(server), **given, think_time_s=0.05, output_tokens=5, warm_up_queries=0
        )
        sent = measured(server.sent())

    found, said = evaluation.measurement, [each.body["messages"] for each in sent]
    texts = [[message["content"] for message in each if message["role"] == "user"] for each in said]
    first, second = [["one"], ["one", "two"], ["one", "two", "three"]], [["four"], ["four", "five"]]
    assert texts == [*first, *second, *first]
    for before, after in ((0, 1), (1, 2), (3, 4), (5, 6), (6, 7)):
        answer = "".join(text for _, _, text in sent[before].chunks[2:])
        reply, user = said[after][len(said[before]) :]
        assert said[after][: len(said[before])] == said[before]
        assert (reply, user["role"]) == ({"role": "assistant", "content": answer}, "user")
    assert found.streams.planned_tokens.tolist() == [5, 5, 5, 3, 3, 5, 5, 5]
    assert [each.body["max_tokens"] for each in sent] == found.streams.planned_tokens.tolist()
    queries = found.run.queries
    assert (queries.scheduled_ns[1:] - queries.done_ns[:-1]).tolist() == [50_000_000] * 7
    ttft_ms = (found.streams.first_ns() - queries.scheduled_ns) / 1e6
    due_ns = [found.run.began_ns, *(each.last_ns + 50_000_000 for each in sent[:-1])]
    truth_ms = [(each.chunks[0][0] - due) / 1e6 for each, due in zip(sent, due_ns, strict=True)]
    assert ttft_ms.tolist() == pytest.approx(truth_ms, abs=8)
    assert found.run.source == "closed loop, 1 users who think for 0.05 s"


def test_users_have_conversations_of_their_own_which_end_with_a_fault(tmp_path: Path) -> None:
    given = {"prompts": conversations(tmp_path / "turns.jsonl"), "concurrency": 2, "max_queries": 20}
    with serving(first_ms=2, token_ms=0.1, breaks="error", breaks_after=1, every=5) as server:
        evaluation = inferometer.measure(
            "generation", agent=at(server), warm_up_queries=0, publish=False, **given
        )
        sent = measured(server.sent())

    assert len(sent) == 20
    assert evaluation.measurement.run.queries.outcome.tolist().count(Outcome.FAILED) == 4
    roles = [[message["role"] for message in each.body["messages"]] for each in sent]
    assert all(each == (["user", "assistant"] * 3)[: len(each)] for each in roles)
    whole = {"".join(text for _, _, text in each.chunks) for each in sent if each.end != "error"}
    replies = [each for asked in sent for each in asked.body["messages"] if each["role"] == "assistant"]
    assert {each["content"] for each in replies} <= whole


@pytest.mark.real_time
def test_users_come_at_a_rate_and_leave_after_their_conversation(tmp_path: Path) -> None:
    given = {"prompts": conversations(tmp_path / "turns.jsonl"), "rate_qps": 20, "arrival": "constant"}
    with serving(first_ms=10, token_ms=1) as server:
        evaluation = inferometer.measure(
            "generation", agent=at(server), **given, duration_s=1, output_tokens=5, warm_up_queries=0
        )
        sent = measured(server.sent())

    queries = evaluation.measurement.run.queries
    firsts = np.array([len(each.body["messages"]) == 1 for each in sent])
    due_ms = queries.scheduled_ns[firsts] / 1e6
    assert due_ms.tolist() == (np.arange(1, len(due_ms) + 1) * 50.0).tolist()
    assert 18 <= len(due_ms) <= 20
    assert 2.3 <= len(sent) / len(due_ms) <= 2.6  # of 3 and 2 turns by turns, but for the last ones
    assert evaluation.measurement.run.source == "20 new users/s (constant)"
    words = GenerationKind().again(evaluation).words
    assert {"--rate=20", f"--prompts={given['prompts']}"} <= set(words)
    assert not any(each.startswith("--concurrency") for each in words)


def test_turns_in_this_process_have_the_answers_before(tmp_path: Path) -> None:
    given = {"prompts": conversations(tmp_path / "turns.jsonl"), "concurrency": 1, "max_queries": 5}
    evaluation = inferometer.measure(
        "generation", **given, ignore_eos=True, output_tokens=6, warm_up_queries=0, publish=False
    )

    lengths = evaluation.measurement.streams.input_tokens.tolist()
    assert lengths[0] == len("one")
    assert lengths[0] < lengths[1] < lengths[2]
    assert lengths[3] == len("four") < lengths[4]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--concurrency=1", "--endpoint=completions"), "only --endpoint=chat takes messages or turns"),
        (("--concurrency=1", "--think_time=-1"), "think_time"),
    ],
)
def test_turns_that_cannot_be_asked_are_refused(
    agent: Agent, options: Sequence[str], error: str, tmp_path: Path
) -> None:
    prompts = f"--prompts={conversations(tmp_path / 'turns.jsonl')}"
    found = agent("measure", "generation", prompts, *options, "--publish=false")

    assert found.code != 0
    assert error in found.stderr.splitlines()[-1], found.stderr
