"""Parser of Dockerfiles, limited to the syntax that docker/ uses; anything else is an error."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_KEYWORDS = frozenset(
    {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM"}
    | {"HEALTHCHECK", "LABEL", "RUN", "USER", "VOLUME", "WORKDIR"}
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_FLAG = re.compile(r"--([a-z-]+)=(\S+)\s+")


class DockerfileError(ValueError):
    """A Dockerfile contains something that this parser does not support."""


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        keyword: The first word, in capitals.
        value: The text after the keyword and the flags, on one line.
        flags: ``--name=value`` before the value, by name.
        line: The number of the first line, counted from one.
    """

    keyword: str
    value: str
    flags: Mapping[str, str]
    line: int

    @property
    def words(self) -> list[str]:
        """The value as words, from its JSON form or split like a shell command."""
        if self.value.startswith("["):
            words = json.loads(self.value)
            if not all(isinstance(word, str) for word in words):
                raise DockerfileError(f"line {self.line}: no list of strings")
            return list(words)
        return shlex.split(self.value)

    @property
    def pairs(self) -> dict[str, str]:
        """The ``NAME=value`` pairs of an ENV, a LABEL or an ARG by name; empty for a name without a value."""
        parts = (word.partition("=") for word in self.words)
        return {name: value for name, _, value in parts}


@dataclass
class Stage:
    """A build stage: a FROM and the instructions after it.

    Attributes:
        base: The image or the earlier stage that it is based on, with ARGs before the first FROM substituted.
        name: The name after ``AS``; empty without one.
        instructions: The instructions after the FROM.
    """

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, keyword: str) -> list[Instruction]:
        """The instructions with a keyword, in order."""
        return [instruction for instruction in self.instructions if instruction.keyword == keyword]

    def last(self, keyword: str) -> Instruction:
        """The last instruction with a keyword, which overrides earlier ones.

        Raises:
            DockerfileError: There is no such instruction.
        """
        if not (found := self.all(keyword)):
            raise DockerfileError(f"no {keyword}")
        return found[-1]

    def merged(self, keyword: str) -> dict[str, str]:
        """The pairs of all ENV, LABEL or ARG instructions."""
        return {name: value for instruction in self.all(keyword) for name, value in instruction.pairs.items()}


def read_stages(text: str) -> list[Stage]:
    """Parses a Dockerfile.

    Raises:
        DockerfileError: It does not begin with FROM, or has an unsupported instruction.
    """
    stages: list[Stage] = []
    arguments: dict[str, str] = {}
    for instruction in _instructions(text):
        if instruction.keyword == "FROM":
            base, _, name = filled(instruction.value, arguments).partition(" AS ")
            stages.append(Stage(base, name))
        elif stages:
            stages[-1].instructions.append(instruction)
        elif instruction.keyword == "ARG":
            arguments.update(instruction.pairs)
        else:
            raise DockerfileError(f"line {instruction.line}: {instruction.keyword} before the first FROM")
    if not stages:
        raise DockerfileError("no FROM")
    return stages


def filled(text: str, variables: Mapping[str, str]) -> str:
    """Substitutes ``$NAME`` and ``${NAME}`` in a text; unknown names are left unchanged."""
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], match[0]), text)


def _instructions(text: str) -> Iterator[Instruction]:
    words: list[str] = []
    begun = 0
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("#") or not (stripped or words):
            continue
        begun = begun or number
        words.append(stripped.removesuffix("\\").strip())
        if not stripped.endswith("\\"):
            yield _instruction(" ".join(words), begun)
            words, begun = [], 0
    if words:
        raise DockerfileError(f"line {begun}: continues after the end of the file")


def _instruction(text: str, line: int) -> Instruction:
    keyword, _, value = text.partition(" ")
    if keyword not in _KEYWORDS:
        raise DockerfileError(f"line {line}: {keyword} is not supported by this parser")
    flags: dict[str, str] = {}
    value = value.strip()
    while match := _FLAG.match(value):
        flags[match[1]] = match[2]
        value = value[match.end() :]
    return Instruction(keyword, value, flags, line)
