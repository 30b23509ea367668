"""``agent measure generation --prompts=…`` scores answers, choices and texts, here and on a server."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import Agent
from tests.integration.generation_truth import serving

ONCE = ("measure", "generation", "--concurrency=1", "--warmup=0", "--endpoint=completions")


def prompts(folder: Path, *lines: object) -> Sequence[str]:
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return (f"--prompts={file}", f"--max_queries={len(lines)}")


def test_the_shipped_model_is_scored_beside_its_times(agent: Agent, tmp_path: Path) -> None:
    lines = (
        {"prompt": "You may", "answer": "add your own attrib", "output_tokens": 20},
        {"prompt": "the Work", "answers": ["nothing", "and"], "output_tokens": 8},
        {"prompt": "Licensor shall", "choices": [" zzz", " be liable"], "correct": 1},
        {"text": "You may reproduce and distribute copies of the Work"},
        {"text": "Subject to the terms and conditions of this License"},
        {"text": "x" * 3000},
    )
    found = agent(*ONCE, *prompts(tmp_path, *lines))

    assert found.code == 0, found.stderr
    assert found.figure("exact match") == "0.5000 [0.0945, 0.9055] over 2 lines"
    assert found.figure("F1") == "0.8333 over 2 lines"  # of "and for"
    assert found.figure("choice") == "1.0000 [0.2065, 1.0000] over 1 line"
    assert found.figure("perplexity") == "1.1713 over 2 lines"  # as transformers 5.24 has it
    assert found.figure("likelihood").startswith(
        "not known for 1 of 6 lines; line 6: the prompt has 3000 tok"
    )
    identity = found.figure("evaluation")
    document = json.loads(agent("info", "evaluation", "show", identity, "-f", "json").stdout)["generation"]
    assert [row["line"] for row in document["scored"]] == [1, 2, 3, 4, 5, 6]
    assert document["scored"][0]["answer"] == " add Your own attrib"
    sums = (-6.92731867, -8.88761572)  # by transformers
    wanted = {"line": 4, "tokens": 50, "log_likelihood": pytest.approx(sums[0], abs=1e-4)}
    assert document["scored"][3] == wanted
    assert document["scores"][-1]["value"] == pytest.approx(math.exp(-sum(sums) / 100), abs=1e-5)
    [row] = agent("info", "evaluation", "generation", "-f", "csv").rows
    assert "perplexity 1.1713 over 2 lines" in row["scores"]


@pytest.mark.parametrize(
    ("behaviour", "options", "wanted"),
    [
        ({"echoes": True}, (), {"perplexity": "2.7183 over 1 line", "choice": "1.0000 [0.2065, 1.0000]"}),
        ({}, (), {"likelihood": "does not tell the log-probabilities of a prompt (echo and logprobs of"}),
        ({"echoes": True}, ("--endpoint=chat",), {"likelihood": "needs --endpoint=completions to tell"}),
    ],
)
def test_a_server_is_scored_as_far_as_it_tells(
    agent: Agent, tmp_path: Path, behaviour: dict[str, object], options: Sequence[str], wanted: dict[str, str]
) -> None:
    lines = ({"text": "one two three"}, {"prompt": "a b", "choices": [" long", " a"], "correct": 1})
    with serving(first_ms=1, token_ms=1, **behaviour) as server:
        load = (f"--agent=openai+http://{server.address}", "--output_tokens=3", "--publish=false")
        found = agent(*ONCE, *load, *prompts(tmp_path, *lines), *options)

    assert found.code == 0, found.stderr
    for name, text in wanted.items():
        assert text in found.figure(name)


def test_a_served_answer_is_scored_without_its_reasoning(agent: Agent, tmp_path: Path) -> None:
    with serving(first_ms=1, token_ms=1, chunk=3, reasoning=3) as server:
        load = (f"--agent=openai+http://{server.address}", "--output_tokens=6", "--publish=false")
        line = {"prompt": "a", "answer": "日本 token ﬁve"}
        found = agent(*ONCE, "--endpoint=chat", *load, *prompts(tmp_path, line))

    assert found.figure("exact match").startswith("1.0000"), found.stdout


@pytest.mark.parametrize("agent_option", ["", "--agent=openai+http://{}"])
def test_a_prompt_that_is_refused_fails_alone_even_if_it_is_the_first(
    agent: Agent, tmp_path: Path, agent_option: str
) -> None:
    lines: list[object] = [{"prompt": "long " * 500}, {"prompt": "You may", "answer": "x"}]
    lines += [{"prompt": "a"}] * 4
    if not agent_option:  # one that cannot be encoded for the engine, too
        lines[2] = {"prompt": "long " * 50_000}
    with serving(first_ms=1, token_ms=1, most_words=100) as server:
        at = [agent_option.format(server.address)] if agent_option else []
        load = (*ONCE, *at, "--output_tokens=3", "--publish=false", *prompts(tmp_path, *lines))
        found = agent(*load)
        server.sent()
        refused = agent(*ONCE, *at, "--publish=false", *prompts(tmp_path, *lines[:1] * 9))
        asked = len(server.sent())

    assert asked == (1 if at else 0)
    assert found.code == 0, found.stderr
    assert "1 failed: " in found.stdout
    assert found.figure("exact match").endswith("over 1 line")
    assert refused.code != 0
    assert "the prompt has " in refused.stderr.splitlines()[-1]


def test_a_search_says_that_it_scores_nothing(agent: Agent, tmp_path: Path) -> None:
    line = {"prompt": "a b", "answer": "x"}
    load = ("--rate=40", "--ttft_bound=300", "--time_budget=4.3", "--min_duration=0.1", "--publish=false")
    options = ("--percentile=50", "--endpoint=completions", "--output_tokens=2", *prompts(tmp_path, line)[:1])
    with serving(first_ms=1, token_ms=0.1) as server:
        at = f"--agent=openai+http://{server.address}"
        found = agent("measure", "generation_search", at, *load, *options)

    assert "a search scores no answers, choices or texts; agent measure generation does" in found.stderr
    assert "exact match" not in found.stdout


def test_a_damaged_line_is_named(agent: Agent, tmp_path: Path) -> None:
    found = agent(*ONCE, *prompts(tmp_path, {"prompt": "a"}, {"prompt": "b", "choices": ["c", "d"]}))

    assert found.code != 0
    assert "line 2: correct is the index of the right one of choices" in found.stderr.splitlines()[-1]
