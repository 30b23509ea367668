"""The prompts of a run: those of a file, or synthetic ones of a given number of tokens."""

from __future__ import annotations

import hashlib
import json
import random
from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from inferometer.manifests.errors import ConfigurationError

MOST_PROMPTS = 1024
_SAMPLE = 64
"""How many words tell about how many tokens a word has."""
_WORDS = (
    *("the", "of", "and", "to", "in", "is", "was", "for", "on", "that", "with", "as"),
    *("by", "at", "from", "his", "it", "an", "were", "are", "which", "this", "be", "or"),
    *("had", "first", "one", "their", "its", "new", "after", "but", "who", "not", "they", "have"),
    *("her", "she", "two", "been", "other", "when", "time", "there", "all", "also", "more", "city"),
    "world",
)
Count = Callable[[str], int | None]
"""Returns the number of tokens of a prompt; None if nobody tells."""


def read_prompts(path: Path, output_tokens: int) -> tuple[list[tuple[Any, int]], str]:
    """Reads prompts from a file of JSON lines, each with ``prompt`` or ``messages``.

    Returns:
        Each text, or list of messages, with the most tokens of its answer; and ``sha256:…`` of the file.

    Raises:
        ConfigurationError: The file cannot be read; the message gives the line.
    """
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8-sig").split("\n")  # a text may have Unicode's other ends of lines
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigurationError(f"prompts {path}: cannot be read: {reason}") from error
    found = [
        _prompt(line, f"prompts {path}: line {number}", output_tokens)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not found:
        raise ConfigurationError(
            f"prompts {path}: is empty; give a JSON object with prompt or messages per line"
        )
    return found, f"sha256:{hashlib.sha256(content).hexdigest()}"


def _prompt(line: str, where: str, output_tokens: int) -> tuple[Any, int]:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where}: is no JSON: {error}") from error
    if not isinstance(given, dict) or ("prompt" in given) == ("messages" in given):
        raise ConfigurationError(f"{where}: is not a JSON object with either prompt or messages")
    content: Any = given.get("prompt", given.get("messages"))
    if "prompt" in given and not isinstance(content, str):
        raise ConfigurationError(f"{where}: prompt is not a text")
    if "messages" in given and not (
        isinstance(content, list) and content and all(isinstance(each, dict) for each in content)
    ):
        raise ConfigurationError(f"{where}: messages is not a list of objects")
    tokens = given.get("output_tokens", output_tokens)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise ConfigurationError(f"{where}: output_tokens is not a whole number of at least 1")
    return content, tokens


def synthetic_prompts(tokens: int, count: int, seed: int, counted: Count) -> tuple[list[str], str]:
    """Returns prompts of common words, and a text that describes them.

    All prompts have the same words in another order, so that they have as many tokens as the first, if a
    token does not reach over the end of a word, and a server's cache of prefixes finds none of them.

    Args:
        tokens: How many tokens a prompt is to have, with those that the server adds.
        count: How many prompts.
        seed: The seed of the words and their order.
        counted: Counts the tokens of a prompt.

    Raises:
        ConfigurationError: The shortest prompt has more tokens.
    """
    drawn = random.Random(seed)  # noqa: S311 - words, no secret
    words = drawn.choices(_WORDS, k=tokens)
    size, filler, found = _fitted(words, tokens, counted)
    orders = [drawn.sample(words[:size], size) for _ in range(min(count, MOST_PROMPTS))]
    prompts = list(dict.fromkeys(" ".join(each) + filler for each in orders))  # a few words have few orders
    kind = f"{len(prompts)} synthetic prompts" if len(prompts) > 1 else "1 synthetic prompt"
    if found is None:
        return prompts, f"{kind} of {size} words, approximately as many tokens: nobody counts them"
    nearly = "" if found == tokens else f", the nearest to {tokens}"
    return prompts, f"{kind} of {found} tokens{nearly}"


def _fitted(words: list[str], tokens: int, counted: Count) -> tuple[int, str, int | None]:
    """Returns how many words, and what behind them, have the wanted number of tokens, and their number."""
    least = counted(words[0])
    if least is None:
        return len(words), "", None
    if least > tokens:
        raise ConfigurationError(f"prompt_tokens is {tokens}, but a prompt of one word already has {least}")

    @cache
    def of(size: int) -> int:
        return counted(" ".join(words[:size])) or least if size > 1 else least

    size = min(len(words), _SAMPLE)
    for share in (0.8, 1.0):  # to come close without a prompt that is too long for the server
        about = 1 + (tokens - least) * (size - 1) / max(of(size) - least, 1)
        size = max(2, min(len(words), int(share * about)))
    sizes = range(max(2, int(0.98 * about) - 4), min(len(words), int(1.02 * about) + 4) + 1)
    size = bisect_right(sizes, tokens, key=of) + sizes.start - 1  # the most words that are not too many
    missing = tokens - of(size)
    for filler in (" a" * missing, "." * missing) if missing > 0 else ():  # each adds a token, in most cases
        if counted(" ".join(words[:size]) + filler) == tokens:
            return size, filler, tokens
    size = min(size, min(size + 1, len(words)), key=lambda each: abs(of(each) - tokens))
    return size, "", of(size)
