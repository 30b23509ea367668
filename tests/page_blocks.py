"""The blocks of code on the pages, and the commands in them.

Commands stand in blocks of the language ``console``, after a prompt. A comment right before a block says what
the tests do with it:

<!-- not run: REASON -->     it needs something that a test does not have; its commands are only parsed
<!-- exits with: 0 or 1 -->  what the commands of the block may exit with, unless it is 0
<!-- file: NAME -->          the content of a file that the reader writes
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_BLOCK = re.compile(
    r"(?:^<!-- (?P<key>not run|exits with|file): (?P<value>[^\n]*) -->\n\n?)?"
    r"^```(?P<language>[\w-]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_PROMPT = re.compile(r"^(?P<host>[a-z][\w-]*)?\$ ")
_PROGRAMS = "agent|docker|make|pip|python|openssl"
_COMMAND = re.compile(rf"^\s*(?:[\w-]*\$ |(?:\w+=\S+ )*(?:{_PROGRAMS}) (?!= ))", re.MULTILINE)


@dataclass(frozen=True)
class Typed:
    """A command that a page shows, and what the page shows of its output.

    Attributes:
        line: The command as one line, without the prompt.
        host: The host before the prompt; empty on the reader's own.
        shown: The lines of the output.
    """

    line: str
    host: str
    shown: tuple[str, ...]

    @cached_property
    def words(self) -> list[str]:
        """The words of the command, without comments, variables before it, and where its output goes."""
        words = itertools.dropwhile(re.compile(r"\w+=").match, shlex.split(self.line, comments=True))
        return [*itertools.takewhile(lambda word: word not in {">", ">>", "|"}, words)]


@dataclass(frozen=True)
class Block:
    """A block of code between fences.

    Attributes:
        place: The page and the line, to find it.
        language: What follows the fence.
        text: What is between the fences.
        key: What the comment before it says; empty without one.
        value: The rest of that comment.
    """

    place: str
    language: str
    text: str
    key: str
    value: str

    @property
    def shows_commands(self) -> bool:
        """Whether a line looks like a command, whatever the language of the block."""
        return _COMMAND.search(self.text) is not None

    @property
    def commands(self) -> Iterator[Typed]:
        """The commands of a block of the language ``console``."""
        line, host, shown = "", "", []
        for text in self.text.replace("\\\n", " ").splitlines():
            if prompt := _PROMPT.match(text):
                if line:
                    yield Typed(line, host, tuple(shown))
                line, host, shown = text[prompt.end() :], prompt["host"] or "", []
            else:
                shown.append(text)
        if line:
            yield Typed(line, host, tuple(shown))


def blocks(page: Path) -> Iterator[Block]:
    """Yields the blocks of a page in their order."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        yield Block(
            f"{page.name}:{line}", found["language"], found["text"], found["key"] or "", found["value"] or ""
        )
