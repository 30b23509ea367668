"""The prompts of generation: their numbers of tokens, by tokenizers of several kinds, traces, and files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.evaluators.kinds.generation.job import generation_job
from inferometer.evaluators.kinds.generation.prompts import (
    Asked,
    lengths_of,
    planned_prompts,
    read_prompts,
    read_trace,
    repeated_share,
    synthetic_prompts,
)
from inferometer.evaluators.kinds.generation.request import GenerationRequest
from inferometer.evaluators.load.arrivals import Extent, Schedule
from inferometer.evaluators.tasks.texts import Truth
from inferometer.manifests.errors import ConfigurationError

TEMPLATE = 12


def _words_of(size: Callable[[str], int]) -> Callable[[str], int]:
    """A tokenizer that adds a template; each full stop is a token."""
    return lambda text: (
        TEMPLATE + sum(size(word.rstrip(".")) + len(word) - len(word.rstrip(".")) for word in text.split())
    )


TOKENIZERS: Mapping[str, tuple[Callable[[str], int], int]] = {
    "one a word": (_words_of(lambda _: 1), 3),
    "long words are two": (_words_of(lambda word: 1 + (len(word) > 4)), 20),
    "two a word": (_words_of(lambda _: 2), 99),
    "three a word": (_words_of(lambda _: 3), 99),
    "bytes": (len, 99),
}
"""Each with the most requests that are needed to know its words."""


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("lengths", [[16] * 5, [64] * 5, [1000] * 5, [15, 17, 20, 333, 64, 2000]])
def test_prompts_have_as_many_tokens_as_asked(tokenizer: str, lengths: Sequence[int]) -> None:
    counted, most = TOKENIZERS[tokenizer]
    asked = list[str]()

    def counting(text: str) -> int:
        asked.append(text)
        return counted(text)

    prompts, told = synthetic_prompts(planned_prompts(lengths, 0, 0.0, 1), 0, counting)

    assert [counted(each) for each in prompts] == list(lengths)
    assert len(asked) <= most
    assert max(map(counted, asked.copy())) <= max(*lengths, 256)  # no more than a server allows
    assert len(set(prompts)) == len(prompts) or min(lengths) < TEMPLATE + 8
    span = f"{lengths[0]}" if len(set(lengths)) == 1 else f"15 to 2000 (mean {np.mean(lengths):.1f})"
    assert told == f"{len(set(prompts))} synthetic prompt{'s' * (len(set(prompts)) > 1)} of {span} tokens"
    assert prompts == synthetic_prompts(planned_prompts(lengths, 0, 0.0, 1), 0, counted)[0]
    assert (
        lengths[0] < 1000 or prompts != synthetic_prompts(planned_prompts(lengths, 1, 0.0, 1), 1, counted)[0]
    )


def test_few_words_of_another_size_are_not_those_of_prompts() -> None:
    """Else prompts that are meant to differ would consist of the same words."""
    counted = _words_of(lambda word: 1 if word in ("of", "to") else 2)
    [prompt], _ = synthetic_prompts(planned_prompts([1001 + TEMPLATE], 0, 0.0, 1), 0, counted)

    assert counted(prompt) == 1001 + TEMPLATE
    assert len(set(prompt.split())) > 20


def test_what_follows_parts_of_different_sizes_is_not_repeated() -> None:
    first, second = (("a", 10), ("b", 10)), (("a", 5), ("b", 10))

    assert repeated_share([first, second]) == 5 / 35
    assert repeated_share([first, first]) == 20 / 40


def test_tokens_over_the_ends_of_words_are_told() -> None:
    planned = planned_prompts([50] * 3, 0, 0.0, 1)
    _, told = synthetic_prompts(planned, 0, lambda text: len(text) // 9 + 1)

    head, found, tail = re.split(r"longest has (\d+)", told)
    assert (head, tail) == ("3 synthetic prompts of 50 tokens, approximately: the ", " instead of 50")
    assert int(found) != 50


def test_nobody_counts_the_tokens_of_a_prompt() -> None:
    prompts, told = synthetic_prompts(planned_prompts([8], 0, 0.0, 1), 0, lambda _: None)

    assert len(prompts[0].split()) == 8
    assert told == "1 synthetic prompt of 8 words, approximately as many tokens: nobody counts them"


def test_a_prompt_that_is_too_short_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="to have 12 tokens, but one of a single word already has 13"
    ):
        synthetic_prompts(planned_prompts([64, 12], 0, 0.0, 1), 0, TOKENIZERS["one a word"][0])


@pytest.mark.parametrize(
    ("text", "mean", "std", "ends"),
    [
        ("normal:mean=256,std=64", 256, 64, (1, 1_000_000)),
        ("lognormal:mean=256,std=64", 256, 64, (1, 1_000_000)),
        ("lognormal:mean=100,std=200", 100, 200, (1, 1_000_000)),
        ("uniform:min=10,max=20", 15, math.sqrt((11**2 - 1) / 12), (10, 20)),
        ("Normal: mean=9, std=0", 9, 0, (9, 9)),
        (17, 17, 0, (17, 17)),
    ],
)
def test_lengths_have_the_mean_and_the_spread_of_their_distribution(
    text: str | int, mean: float, std: float, ends: tuple[int, int]
) -> None:
    count = 40_000
    drawn = lengths_of("prompt_tokens", text).drawn(count, (3, 1))

    assert np.mean(drawn) == pytest.approx(mean, abs=1e-9 + 4 * std / math.sqrt(count))
    assert np.std(drawn) == pytest.approx(std, rel=0.1)
    assert ends[0] <= min(drawn) <= max(drawn) <= ends[1]
    assert drawn == lengths_of("prompt_tokens", text).drawn(count, (3, 1))
    assert not std or drawn != lengths_of("prompt_tokens", text).drawn(count, (3, 2))


def test_lengths_beyond_the_ends_become_them() -> None:
    drawn = np.array(lengths_of("x", "normal:mean=50,std=100,min=16,max=90").drawn(10_000, (0, 1)))

    assert (drawn.min(), drawn.max()) == (16, 90)
    assert np.mean(drawn == 16) == pytest.approx(0.369, abs=0.02)  # below 16.5: Φ(-0.335)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("norml:mean=3,std=1", 'unknown prompt_tokens distribution "norml"; did you mean "normal"'),
        ("many", "unknown prompt_tokens distribution"),
        ("-3", "unknown prompt_tokens distribution"),
        ("normal:mean=3", "prompt_tokens normal: give std"),
        ("normal", "prompt_tokens normal: give mean and std"),
        ("uniform:min=3", "prompt_tokens uniform: give max"),
        ("uniform:mean=3", 'prompt_tokens uniform: unknown parameter "mean"; it has min, max'),
        ("uniform:min=9,max=3", "min and max are whole numbers, in order"),
        ("uniform:min=0,max=3", "min and max are whole numbers, in order, within 1…1000000"),
        ("uniform:min=1.5,max=3", "min and max are whole numbers"),
        ("normal:mean=0,std=1", "mean is above 0"),
        ("lognormal:mean=3,std=-1", "std is at least 0"),
        ("lognormal:mean=3,std=nan", "std is nan; it must be finite"),
    ],
)
def test_a_distribution_that_is_none_is_refused_before_anything_runs(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        generation_job(GenerationRequest(agent="openai+http://h:1", prompt_tokens=text))


def _repeated(prompts: Sequence[str]) -> float:
    """The share of the words with which a prompt begins as an earlier one, word by word."""
    split = [each.split() for each in prompts]
    same = [
        max((_same(each, before) for before in split[:place]), default=0) for place, each in enumerate(split)
    ]
    return sum(same) / sum(map(len, split))


def _same(one: Sequence[str], other: Sequence[str]) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("prefixes", [1, 4])
def test_a_share_of_each_prompt_is_a_common_prefix(share: float, prefixes: int) -> None:
    lengths = lengths_of("x", "uniform:min=100,max=300").drawn(60, (1, 1))
    planned = planned_prompts(lengths, 1, share, prefixes)
    prompts, told = synthetic_prompts(planned, 1, lambda text: len(text.split()))

    assert [len(each.split()) for each in prompts] == lengths
    beginnings = {" ".join(each.split()[: round(100 * share)]) for each in prompts}
    assert len(beginnings) == prefixes
    assert repeated_share(planned) == pytest.approx(_repeated(prompts), abs=0.01)
    assert f"tokens, {100 * repeated_share(planned):.1f} % of them as an earlier prompt begins" in told


def _write(path: Path, rows: Sequence[Mapping[str, Any] | str]) -> Path:
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in rows))
    return path


ROWS = (
    {"timestamp": 2500, "input_length": 1100, "output_length": 9, "hash_ids": [1, 3, 9]},
    {"timestamp": 1000, "input_length": 600, "output_length": 12, "hash_ids": [1, 2]},
    {"timestamp": 1500.5, "input_length": 1100, "output_length": 5, "hash_ids": [1, 3, 4]},
    {"timestamp": 3000, "input_length": 900, "hash_ids": [1, 2]},
    {"timestamp": 3000, "input_length": 40},
)


def test_equal_blocks_of_a_trace_are_equal_tokens(tmp_path: Path) -> None:
    trace = read_trace(_write(tmp_path / "trace.jsonl", ROWS))
    planned = [each.content for each in trace.requests]
    prompts, told = synthetic_prompts(planned, 0, lambda text: len(text.split()))

    first, second, third, fourth, last = (each.split() for each in prompts)
    assert [len(each) for each in (first, second, third, fourth, last)] == [600, 1100, 1100, 900, 40]
    assert 512 <= _same(first, second) <= 516
    assert 1024 <= _same(second, third) <= 1028
    assert first == fourth[:600]
    assert [each.output_tokens for each in trace.requests] == [12, 5, 9, None, None]
    assert repeated_share(planned) == pytest.approx((512 + 1024 + 600) / 3740)
    assert repeated_share(planned) == pytest.approx(_repeated(prompts), abs=0.01)
    assert told.startswith(
        "5 synthetic prompts of 40 to 1100 (mean 748.0) tokens, 57.1 % of them as an earlier"
    )


@pytest.mark.parametrize(
    ("given", "offsets_s"),
    [
        ({}, [0, 0.5005, 1.5, 2, 2]),
        ({"max_queries": 3}, [0, 0.5005, 1.5]),
        ({"duration_s": 1.5}, [0, 0.5005, 1.5]),
        ({"rate_qps": 4.0}, [0, 0.25025, 0.75, 1, 1]),
        ({"rate_qps": 4.0, "max_queries": 3}, [0, 0.5005 / 3, 0.5]),
        ({"rate_qps": 1.0, "duration_s": 1.5}, [0, 1.001]),
    ],
)
def test_the_requests_of_a_trace_are_due_at_its_times(
    given: Mapping[str, Any], offsets_s: Sequence[float], tmp_path: Path
) -> None:
    path = _write(tmp_path / "trace.jsonl", ROWS)
    [work] = generation_job(GenerationRequest(replay=path, **given)).run.args[1]  # type: ignore[attr-defined]

    assert isinstance(work, Schedule)
    assert work.offsets_ns / 1e9 == pytest.approx(offsets_s)
    assert work.rate_qps == pytest.approx((len(offsets_s) - 1) / offsets_s[-1])


def test_requests_of_a_trace_that_are_due_together_are_so_at_any_rate(tmp_path: Path) -> None:
    path = _write(tmp_path / "trace.jsonl", [{"timestamp": 7, "input_length": 20}] * 3)
    trace = read_trace(path)

    for rate_qps in (None, 4.0):
        assert trace.schedule(Extent(0.0, 3), rate_qps).offsets_ns.tolist() == [0, 0, 0]


def test_a_trace_in_a_closed_loop_has_each_request_once(tmp_path: Path) -> None:
    path = _write(tmp_path / "trace.jsonl", ROWS)
    [work] = generation_job(GenerationRequest(replay=path, concurrency=2)).run.args[1]  # type: ignore[attr-defined]

    assert work.extent == Extent(0.0, 5, None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 2: is no JSON"),
        ("3", "line 2: timestamp is not a number of milliseconds"),
        ({"input_length": 3}, "line 2: timestamp is not a number"),
        ({"timestamp": -1, "input_length": 3}, "line 2: timestamp is not a number"),
        ({"timestamp": True, "input_length": 3}, "line 2: timestamp is not a number"),
        ('{"timestamp": NaN, "input_length": 3}', "line 2: timestamp is not a number"),
        ({"timestamp": 10**400, "input_length": 3}, "line 2: timestamp is not a number"),
        ({"timestamp": 1e300, "input_length": 3}, "line 2: timestamp is not a number"),
        ({"timestamp": 1}, "line 2: input_length is not a whole number within"),
        ({"timestamp": 1, "input_length": 0}, "line 2: input_length is not a whole number"),
        (
            {"timestamp": 1, "input_length": 3, "output_length": 0},
            "line 2: output_length is not a whole number",
        ),
        (
            {"timestamp": 1, "input_length": 513, "hash_ids": [1]},
            "line 2: hash_ids is not a list of 2, one per 512",
        ),
        ({"timestamp": 1, "input_length": 5, "hash_ids": "a"}, "line 2: hash_ids is not a list of 1"),
    ],
)
def test_a_line_that_is_no_request_is_refused(row: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_trace(_write(tmp_path / "trace.jsonl", [ROWS[0], row]))


def test_a_prompt_may_have_other_ends_of_lines(tmp_path: Any) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes('{"prompt": "a\u2028b\x85c"}\r\n\r\n{"prompt": "d"}\n'.encode())

    asked = [Asked("a\u2028b\x85c", truth=Truth(line=1)), Asked("d", truth=Truth(line=3))]
    assert read_prompts(file).requests == asked


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: is no JSON"),
        ("3", "line 2: is not a JSON object with either prompt, messages, turns or text"),
        ('{"prompt": "a", "messages": []}', "line 2: is not a JSON object with either"),
        ('{"prompt": 3}', "line 2: prompt is not a text"),
        ('{"messages": ["a"]}', "line 2: messages is not a list of objects"),
        ('{"messages": []}', "line 2: messages is not a list of objects"),
        ('{"turns": "a"}', "line 2: turns is not a list of texts"),
        ('{"turns": ["a", 3]}', "line 2: turns is not a list of texts"),
        ('{"prompt": "a", "output_tokens": 0}', "line 2: output_tokens is not a whole number"),
    ],
)
def test_a_line_that_is_no_prompt_is_refused(line: str, message: str, tmp_path: Any) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'{{"prompt": "a"}}\n{line}\n')

    with pytest.raises(ConfigurationError, match=message):
        read_prompts(file)
