"""The prompts of a run: those of a file, or synthetic ones of given, drawn or traced numbers of tokens."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from inferometer.evaluators.load.arrivals import Extent, Schedule, of_text
from inferometer.evaluators.statistics import random_state
from inferometer.evaluators.tasks.texts import Truth
from inferometer.manifests.errors import ConfigurationError

MOST_PROMPTS = 1024
_MOST_TOKENS = 1_000_000
_MOST_MS = 9_000_000_000_000  # as int64 in ns; the epoch's milliseconds are fewer until 2255
_BLOCK = 512
"""The tokens of a block in a trace."""
_ENOUGH = 12
"""How many words of the same size are enough for prompts."""
_WORDS: tuple[str, ...] = (
    *("the", "of", "and", "to", "in", "is", "was", "for", "on", "that", "with", "as"),
    *("by", "at", "from", "his", "it", "an", "were", "are", "which", "this", "be", "or"),
    *("had", "first", "one", "their", "its", "new", "after", "but", "who", "not", "they", "have"),
    *("her", "she", "two", "been", "other", "when", "time", "there", "all", "also", "more", "city"),
    "world",
)
Count = Callable[[str], int | None]
"""Returns the number of tokens of a prompt; None if nobody tells."""
Parts: TypeAlias = tuple[tuple[str, int], ...]
"""The parts of a prompt: a name, which determines the words, and the number of tokens."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Uniformly distributed numbers of tokens; what is drawn is rounded, and moved to ``min`` or ``max``."""

    min: float = 1
    max: float

    def __post_init__(self) -> None:
        ends, mean, std = (self.min, self.max), getattr(self, "mean", 1), getattr(self, "std", 0)
        whole = all(each == round(each) for each in ends) and 1 <= self.min <= self.max <= _MOST_TOKENS
        if not (whole and 0 < mean <= _MOST_TOKENS and 0 <= std <= _MOST_TOKENS):
            text = f"min and max are whole numbers, in order, within 1…{_MOST_TOKENS}; mean is above 0"
            raise ConfigurationError(f"distribution of tokens: {text}; std is at least 0")

    def drawn(self, count: int, seed: Sequence[int]) -> list[int]:
        """Draws numbers of tokens."""
        values = np.clip(np.rint(self._values(random_state(seed), count)), self.min, self.max)
        return list(map(int, values))

    def _values(self, drawing: np.random.RandomState, count: int) -> NDArray[Any]:
        return drawing.randint(int(self.min), int(self.max) + 1, count)


@dataclass(frozen=True, kw_only=True)
class _Normal(Lengths):
    max: float = _MOST_TOKENS
    mean: float
    std: float

    def _values(self, drawing: np.random.RandomState, count: int) -> NDArray[Any]:
        return drawing.normal(self.mean, self.std, count)


class _LogNormal(_Normal):
    """``mean`` and ``std`` are those of the numbers, not of their logarithms."""

    def _values(self, drawing: np.random.RandomState, count: int) -> NDArray[Any]:
        variance = math.log1p((self.std / self.mean) ** 2)
        return drawing.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), count)


_LENGTHS: Mapping[str, type[Lengths]] = {"normal": _Normal, "lognormal": _LogNormal, "uniform": Lengths}


def lengths_of(what: str, given: int | str) -> Lengths:
    """Returns what the option ``what`` gives: a number, or a distribution as ``normal:mean=256,std=64``.

    Raises ConfigurationError if the distribution is unknown or invalid.
    """
    if isinstance(given, int) or given.isdecimal():
        return Lengths(min=int(given), max=int(given))
    return of_text(given, _LENGTHS, what, "distribution")


class Asked(NamedTuple):
    """What a line asks: ``content`` is a text, messages or parts; ``turns`` are texts that follow answers."""

    content: Any
    turns: Sequence[str] = ()
    output_tokens: int | None = None
    due_ms: float = 0.0
    truth: Truth | None = None


@dataclass(frozen=True, slots=True)
class RequestFile:
    """The requests of a file, in the order in which they are due, and ``sha256:…`` of the file."""

    path: Path
    requests: Sequence[Asked]
    checksum: str

    def schedule(self, extent: Extent, rate_qps: float | None) -> Schedule:
        """Returns when its requests are due, the first at once; a rate scales the times to this mean rate."""
        due_ms = np.array([each.due_ms for each in self.requests[: extent.min_queries]])
        offsets_ns = (due_ms - due_ms[0]) * 1e6
        if rate_qps and offsets_ns[-1]:
            offsets_ns *= (len(offsets_ns) - 1) * 1e9 / rate_qps / offsets_ns[-1]
        if extent.max_duration_s is not None:
            offsets_ns = offsets_ns[offsets_ns <= extent.max_duration_s * 1e9]
        return Schedule.given(np.rint(offsets_ns).astype(np.int64), f"trace {self.path.name}")


def read_prompts(path: Path) -> RequestFile:
    """Reads JSON lines with ``prompt``, ``messages``, ``turns`` or ``text``, and with what is right.

    Raises ConfigurationError if the file cannot be read; the message gives the line.
    """
    return _read(path, "prompts", "prompt, messages, turns or text", _prompt)


def read_trace(path: Path) -> RequestFile:
    """Reads a trace in Mooncake's format, JSON lines with ``timestamp`` in ms and ``input_length`` in tokens.

    ``output_length`` may be missing, and ``hash_ids``, which name the prompt's blocks of 512 tokens. Raises
    ConfigurationError if the file cannot be read; the message gives the line.
    """
    return _read(path, "replay", "timestamp and input_length", _traced)


def _read(path: Path, what: str, keys: str, parse: Callable[..., Asked]) -> RequestFile:
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8-sig").split("\n")  # a text may have Unicode's other ends of lines
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigurationError(f"{what} {path}: cannot be read: {reason}") from error
    found = list[Asked]()
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{what} {path}: line {number}"
            try:
                given = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigurationError(f"{where}: is no JSON: {error}") from error
            found.append(parse(given if isinstance(given, dict) else {}, where, number))
    if not found:
        raise ConfigurationError(f"{what} {path}: is empty; give a JSON object with {keys} per line")
    found.sort(key=lambda each: each.due_ms)
    return RequestFile(path, found, f"sha256:{hashlib.sha256(content).hexdigest()}")


_TEXT = (str, "a text")
_OF = {
    "prompt": _TEXT,
    "text": _TEXT,
    "messages": (dict, "a list of objects"),
    "turns": (str, "a list of texts"),
}


def _prompt(given: Mapping[str, Any], where: str, number: int) -> Asked:
    keys = [each for each in _OF if each in given]
    if len(keys) != 1:
        raise ConfigurationError(f"{where}: is not a JSON object with either prompt, messages, turns or text")
    content, (of, what) = given[keys[0]], _OF[keys[0]]
    parts = [content] if (of, what) == _TEXT else content
    if not (isinstance(parts, list) and parts and all(isinstance(each, of) for each in parts)):
        raise ConfigurationError(f"{where}: {keys[0]} is not {what}")
    first, turns = (content[0], content[1:]) if keys == ["turns"] else (content, ())
    tokens = _tokens(given, "output_tokens", where)
    try:
        return Asked(first, turns, tokens, truth=Truth.model_validate({**given, "line": number}))
    except ValidationError as error:
        wrong = error.errors()[0]
        reason = ": ".join([*map(str, wrong["loc"]), wrong["msg"].removeprefix("Value error, ")])
        raise ConfigurationError(f"{where}: {reason}") from error


def _tokens(given: Mapping[str, Any], name: str, where: str) -> int | None:
    tokens = given.get(name)
    if name in given and not (type(tokens) is int and 1 <= tokens <= _MOST_TOKENS):
        raise ConfigurationError(f"{where}: {name} is not a whole number within 1…{_MOST_TOKENS}")
    return tokens


def _traced(given: Mapping[str, Any], where: str, number: int) -> Asked:
    due_ms, ids = given.get("timestamp"), given.get("hash_ids")
    if isinstance(due_ms, bool) or not isinstance(due_ms, int | float) or not 0 <= due_ms <= _MOST_MS:
        raise ConfigurationError(f"{where}: timestamp is not a number of milliseconds within 0…{_MOST_MS}")
    tokens = _tokens({"input_length": None, **given}, "input_length", where) or 0
    parts = [(f"line {number}", tokens)]
    if ids:
        sizes = [min(_BLOCK, tokens - begin) for begin in range(0, tokens, _BLOCK)]
        if not isinstance(ids, list) or len(ids) != len(sizes):
            raise ConfigurationError(
                f"{where}: hash_ids is not a list of {len(sizes)}, one per {_BLOCK} tokens"
            )
        parts = [(f"block {each}", size) for each, size in zip(ids, sizes, strict=True)]
    return Asked(tuple(parts), (), _tokens(given, "output_length", where), due_ms)


def planned_prompts(lengths: Sequence[int], seed: int, share: float, prefixes: int) -> list[Parts]:
    """Returns the parts of synthetic prompts: a share of each is one of some prefixes, the rest its own."""
    chosen = random_state((seed, 3)).randint(prefixes, size=len(lengths))
    common = [round(share * each) for each in lengths]
    return [
        ((f"prefix {which}", shared), (f"own {n}", tokens - shared))
        for n, (which, shared, tokens) in enumerate(zip(chosen, common, lengths, strict=True))
    ]


def repeated_share(planned: Iterable[Parts]) -> float:
    """Returns the share of the tokens with which prompts begin as earlier ones: the hit rate of a cache."""
    known: dict[tuple[int, str], int] = {}
    tokens = repeated = 0
    for parts in planned:
        path = 0
        for name, size in parts:
            before = known.get((path, name), 0)
            known[path, name] = max(before, size)
            repeated, tokens, path = repeated + min(before, size), tokens + size, hash((path, name, size))
    return repeated / tokens


def synthetic_prompts(planned: Sequence[Parts], seed: int, counted: Count) -> tuple[list[str], str]:
    """Returns prompts of common words, and a text that describes them.

    Equal parts at the beginning have equal words. Raises ConfigurationError if a prompt is too short.
    """
    words = _Words(counted)
    sizes = [sum(size for _, size in parts) for parts in planned]
    if min(sizes) < words.first:
        raise ConfigurationError(
            f"a prompt is to have {min(sizes)} tokens, but one of a single word already has {words.first}"
        )
    prompts = [words.prompt(parts, seed) for parts in planned]
    different, most = len(set(prompts)), max(sizes)
    kind = f"{different} synthetic prompts" if different > 1 else "1 synthetic prompt"
    tokens = f"{most}" if most == min(sizes) else f"{min(sizes)} to {most} (mean {np.mean(sizes):.1f})"
    repeated = repeated_share(planned)
    again = f", {100 * repeated:.1f} % of them as an earlier prompt begins" if repeated else ""
    if not words.counts:
        return prompts, f"{kind} of {tokens} words{again}, approximately as many tokens: nobody counts them"
    found = counted(prompts[sizes.index(most)])
    nearly = "" if found == most else f", approximately: the longest has {found} instead of {most}"
    return prompts, f"{kind} of {tokens} tokens{again}{nearly}"


class _Words:
    """Common words that have the same number of tokens, ``size``, behind another word.

    A prompt has the tokens of its first word, ``first``, with those that the server adds, and ``size`` for
    each further word, as long as no token reaches over the end of a word. All words are counted together
    first, because most often each is a single token, which then needs few requests.
    """

    def __init__(self, counted: Count) -> None:
        told, sizes = counted(_WORDS[0]), dict[str, int]()
        self.counts, self.first = told is not None, told or 1
        todo = [_WORDS] if self.counts else []
        while todo and Counter(sizes.values())[1] < _ENOUGH:
            part = todo.pop()
            tokens = (counted(" ".join((_WORDS[0], *part))) or 0) - self.first
            if tokens <= len(part) or len(part) == 1:
                sizes |= dict.fromkeys(part, max(tokens // len(part), 1))
            else:
                todo += [part[len(part) // 2 :], part[: len(part) // 2]]
        many = [size for size, count in Counter(sizes.values()).most_common() if count >= _ENOUGH]
        self.size = min(many, default=next(iter(sizes.values()), 1))
        self._words = [each for each, size in sizes.items() if size == self.size] or _WORDS

    def prompt(self, parts: Parts, seed: int) -> str:
        """Returns a prompt; full stops make up for what is less than a word."""
        words, tokens = [_WORDS[0]], -self.first
        for name, size in parts:
            tokens += size
            drawn = random.Random(f"{seed} {name}")  # noqa: S311 - words, no secret
            words += drawn.choices(self._words, k=max(0, tokens // self.size + 1 - len(words)))
        return " ".join(words) + "." * (tokens % self.size)
