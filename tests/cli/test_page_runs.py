"""Every command that the README, the tutorial and the guides show runs, in the order of its page.

Evaluations end earlier than a reader's: limits are added to what repeats. Of the output that a page shows,
the words are looked for that its lines begin with, because figures differ from run to run.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Agent
from tests.page_blocks import Block, Typed, blocks

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
RUN_PYTHON = ("README.md", "tutorial.md")
"""The pages whose blocks of Python are run here; those of others have tests of their own."""
LIMITS = {
    "workload": ("--duration=0.3", "--allow_invalid"),
    "max-qps": ("--time_budget=1.3", "--min_duration=0.1", "--min_queries=10", "--allow_invalid"),
}
MIX_LIMITS = ("--time_budget=2", "--min_duration=0.2", "--allow_invalid")
SCENARIO_LIMITS = ("--min_duration=0.1", "--min_queries=20", "--allow_invalid")
FRESH_LIMITS = ("--repeat=2", "--time_budget=0.2")
BATCH_LIMIT = "--num_batches=3"
MEASURE_LIMITS = {
    "generation_search": ("--time_budget=3", "--min_duration=0.3"),
    "mix": ("--blocks=2", "--duration=0.3"),
    "mix_search": ("--time_budget=2", "--min_duration=0.2"),
}
MOST = {"--max_queries": 8, "--duration": 0.5}
"""The most of the options that end a measurement of generation, one of which it may have."""
OPERATOR_LIMIT = "--time_budget=0.02"
_ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def _runs(block: Block) -> bool:
    """Whether a test runs the block; tests/architecture/test_pages_commands.py parses those of the others."""
    return block.language == "console" and block.key != "not run"


def _limited(words: list[str]) -> list[str]:
    """The words with limits, the last of which count."""
    if any(word.startswith("--num_batches") for word in words):
        return [*words, BATCH_LIMIT]
    if words[0] == "measure":
        return [*map(_at_most, words), *MEASURE_LIMITS.get(words[1], ())]
    if words[:2] == ["op", "run"]:
        return [*words, OPERATOR_LIMIT]
    if words[0] != "predict":
        return words
    if words[1] in LIMITS:
        limits = SCENARIO_LIMITS if any(word.startswith("--scenario") for word in words) else LIMITS[words[1]]
        mix = words[1] == "max-qps" and any(word.startswith("--mix") for word in words)
        return [*words, *(MIX_LIMITS if mix else limits)]
    return [*words, *FRESH_LIMITS] if any(word.startswith("--repeat") for word in words) else words


def _at_most(word: str) -> str:
    """The word, with a smaller number where it is an option that ends a measurement."""
    name, _, value = word.partition("=")
    return f"{name}={min(float(value), MOST[name]):g}" if name in MOST else word


def _beginnings(shown: str) -> set[str]:
    """The first words of the lines that are not indented. Words in capitals are verdicts, such as INVALID."""
    words = {line.split()[0] for line in shown.splitlines() if re.match(r"[^\s…]", line)}
    return {_constant(word) for word in words if not word[:2].isupper()}


def _constant(text: str) -> str:
    """The text without what differs from run to run."""
    return re.sub(rf"{_ID}|\b[0-9a-f]{{8}}\b|[\d.,]+", "#", text)


def _ids(text: str) -> list[str]:
    """The ids in the order in which they are printed first."""
    return list(dict.fromkeys(re.findall(_ID, text)))


class _Reader:
    """Types the commands of a page, with the ids that they print in place of those that the page shows."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._ids: dict[str, str] = {}

    def type(self, block: Block, typed: Typed) -> None:
        """Runs a command, and compares what it prints with what the page shows."""
        place = f"{block.place}: {typed.line}"
        assert typed.words[0] == "agent", f"{place}: a block with another program needs its reason not to run"
        words = [
            re.sub(r"\b[0-9a-f]{8}\b", lambda found: self._ids.get(found[0], found[0]), word)
            for word in _limited(typed.words[1:])
        ]
        answer = self._agent(*words)
        codes = block.value.split(" or ") if block.key == "exits with" else ["0"]
        assert str(answer.code) in codes, f"{place} exits with {answer.code}: {answer.stderr}"
        shown, printed = "\n".join(typed.shown), answer.stdout + answer.stderr
        assert _beginnings(shown) <= set(_constant(printed).split()), place
        new = [name for name in _ids(printed) if name not in self._ids.values()]
        fresh = [name[:8] for name in _ids(shown) if name[:8] not in self._ids]
        self._ids.update(zip(fresh, new, strict=False))


@pytest.mark.parametrize("page", [p for p in PAGES if any(map(_runs, blocks(p)))], ids=lambda page: page.name)
def test_every_command_of_the_page_runs(
    agent: Agent, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reader, names = _Reader(agent), dict[str, object]()
    for block in blocks(page):
        if block.key == "file":
            path = tmp_path / block.value
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif _runs(block):
            for typed in block.commands:
                reader.type(block, typed)
        elif block.language == "python" and page.name in RUN_PYTHON:
            exec(compile(block.text, block.place, "exec"), names)


def _page(folder: Path, text: str) -> Block:
    path = folder / "page.md"
    path.write_text(text, encoding="utf-8")
    (block,) = blocks(path)
    return block


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```console\n$ agent info modles\n```\n", "exits with 2"),
        ("```console\n$ agent info frameworks\nnothing of the kind\n```\n", "agent info frameworks"),
        ("<!-- exits with: 1 -->\n```console\n$ agent info frameworks\n```\n", "exits with 0"),
        ("```console\n$ rm -r /\n```\n", "needs its reason"),
    ],
)
def test_what_a_page_says_wrongly_is_found(agent: Agent, tmp_path: Path, text: str, wrong: str) -> None:
    block = _page(tmp_path, text)
    (typed,) = block.commands

    with pytest.raises(AssertionError, match=re.escape(wrong)):
        _Reader(agent).type(block, typed)
