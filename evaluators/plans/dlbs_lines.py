"""The command lines of DLBS's ``experimenter.py``: their options, and those that a shell script contains.

A script is read, never run. Of the shell, the reader knows words, quotes, escapes, comments, continued
lines, redirections, here-documents (which are skipped), assignments of variables, ``$NAME``, ``${NAME}`` and
``$1``. What only a shell can compute, such as ``$(date)``, has no value, and a command line that requires it
is refused. Branches are ignored: the command lines after ``if false`` are read, too.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

PROGRAM = "experimenter.py"
PLANNED = ("run", "build", "validate")
"""The actions of the program that build a plan."""
ACTIONS = (*PLANNED, "print-config", "help", "sysinfo")
_GIVEN = re.compile(r"([^=]+)=(.+)", re.DOTALL)
_UNKNOWN = re.compile("\0(.*?)\0", re.DOTALL)
_QUOTED = r"""(?P<double>") | \\(?P<escaped>.) | `(?P<ticked>(?:\\.|[^`\\])*)`
    | \$(?P<name>\w+|\{[^}]{0,99}\}|\()"""
_PLAIN = r"""(?P<single>'[^']*') | (?P<here><<-?[^\S\n]*(?P<mark>[A-Za-z_\\'"][^\s;&|<>()]*))
    | (?P<dropped>(?<![^\s;&|(])(?:\#[^\n]*|[0-9]*[<>]+&?\s*[^\s;&|<>]+))
    | (?P<end>\n|;|\|+|&&|&(?!>))"""
_IN_QUOTES = re.compile(rf"{_QUOTED} | [^\"\\`$]+ | .", re.DOTALL | re.VERBOSE)
_PIECE = re.compile(rf"{_QUOTED} | {_PLAIN} | \w+ | .", re.DOTALL | re.VERBOSE)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_RESERVED = ("if", "then", "else", "elif", "do", "while", "until", "!", "{", "time", "exec", "sudo")
_DECLARING = ("export", "declare", "local", "readonly")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parser() -> _Parser:
    parser = _Parser(prog=PROGRAM, add_help=False)
    parser.add_argument("action", nargs="?", default="help")
    parser.add_argument("--config")
    for name in ("P", "V", "E"):
        parser.add_argument(f"-{name}", action="append", default=[])
    parser.add_argument("--discard_default_config", "--discard-default-config", action="store_true")
    parser.add_argument("--no_validation", "--no-validation", action="store_true")
    for name in ("log_level", "progress_file", "plan"):
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}")
    parser.add_argument("-h", "--help", dest="action", action="store_const", const="help")
    return parser


@dataclass(frozen=True)
class CommandLine:
    """One command line.

    Attributes:
        action: The action of the program; only those of ``PLANNED`` build a plan.
        configuration: The file of the configuration; empty for none.
        defaults: Whether DLBS's own configuration is beneath it.
        parameters: The values of ``-P``.
        variables: The values of ``-V``.
        extensions: The values of ``-E``.
    """

    action: str
    configuration: str = ""
    defaults: bool = True
    parameters: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    extensions: Sequence[Any] = ()

    def applied(self, text: str) -> str:
        """Returns a configuration in JSON with the values of the command line; a wrong text is unchanged."""
        try:
            content = json.loads(text)
            parameters = content.setdefault("parameters", {})
            for name, value in self.parameters.items():
                known = parameters.get(name)
                parameters[name] = {**known, "val": value} if isinstance(known, dict) else value
            content.setdefault("variables", {}).update(self.variables)
            content.setdefault("extensions", []).extend(self.extensions)
        except (ValueError, RecursionError, AttributeError, TypeError):
            return text  # the import says what is wrong
        return json.dumps(content)


def command_line(words: Sequence[str]) -> CommandLine:
    """Returns the command line of the words after the program.

    Raises:
        ValueError: The words are not a command line of the program.
    """
    found, unknown = _parser().parse_known_args(list(words))
    if found.action not in ACTIONS:
        raise ValueError(f'unknown action "{found.action}"; {PROGRAM} has {", ".join(ACTIONS)}')
    if unknown and found.action in PLANNED:
        raise ValueError(
            f"unknown argument {unknown[0]}; {PROGRAM} has -P, -V, -E, --config, --discard_default_config, "
            "--no_validation, --log_level, --progress_file and --plan"
        )
    return CommandLine(
        action=found.action,
        configuration=found.config or "",
        defaults=not found.discard_default_config,
        parameters=dict(_assigned(each, "-P") for each in found.P),
        variables=dict(_assigned(each, "-V") for each in found.V),
        extensions=[_json(each, "-E") for each in found.E],
    )


def _assigned(text: str, option: str) -> tuple[str, Any]:
    found = _GIVEN.fullmatch(text)
    if found is None:
        raise ValueError(f"{option} {text}: is not NAME=JSON, such as exp.model='\"alexnet\"'")
    return found[1], _json(found[2], f"{option} {found[1]}")


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: {text} is not JSON: {error}; quote a text twice: '\"a\"'") from error


def command_lines(
    script: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[CommandLine | ValueError]:
    """Yields the command lines of a shell script, or why one cannot be read, which begins with its line.

    Args:
        script: The text of the script.
        arguments: The values of ``$1`` and those after it.
        environment: The variables that the script does not set.
    """
    positional = {str(place): each for place, each in enumerate(arguments, 1)}
    variables = {"experimenter": PROGRAM, **environment, **positional, "#": str(len(arguments))}
    for number, text in _commands(script, variables):
        try:
            words = shlex.split(text)
        except ValueError:
            if PROGRAM in text:
                yield ValueError(f"line {number}: a quote is not closed")
            continue
        following = _after_program(words, variables)
        if following is None:
            continue
        try:
            if missing := _UNKNOWN.search(" ".join(following)):
                raise ValueError(
                    f'"{missing[1]}" has no value without a shell; set the variable in the environment, or '
                    "give the arguments of the script after its name"
                )
            yield command_line(following)
        except ValueError as error:
            yield ValueError(f"line {number}: {error}")


def _commands(script: str, variables: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yields the commands of a script with the number of their first line, for ``shlex`` to split."""
    text, first, line, place, quoted, marks = "", 1, 1, 0, False, list[str]()
    while found := (_IN_QUOTES if quoted else _PIECE).match(script, place):
        piece, place, kind = found[0], found.end(), found.lastgroup
        if kind == "name":
            name, place = _name_of(found["name"], script, place)
            text += _escaped(_value(name, variables), text, quoted=quoted)
        elif kind == "ticked":
            text += "" if found["ticked"].startswith("#") else f"\0{piece}\0"
        elif kind == "escaped" and (piece == "\\\n" or (quoted and piece[1] in "$`")):
            text += piece[1].strip("\n")
        elif kind == "here":
            marks.append(re.escape(re.sub(r"""[\\'"]""", "", found["mark"])))
        elif kind == "end":
            yield first, text
            text = ""
            while piece == "\n" and marks:  # without its mark, a here-document is the rest of the script
                document = re.compile(rf"^\t*{marks.pop(0)}$\n?", re.MULTILINE).search(script, place)
                place = document.end() if document else len(script)
        elif kind != "dropped":
            quoted = quoted != (kind == "double")
            text += piece
        line += script.count("\n", found.start(), place)
        if not text or text.isspace():
            first = line
    yield first, text


def _escaped(value: str, text: str, *, quoted: bool) -> str:
    """Returns a value as it follows a text: only outside of quotes and assignments, its spaces part words."""
    if quoted:
        return re.sub(r'(["\\])', r"\\\1", value)
    whole = "\0" in value or _ASSIGNED.fullmatch(re.split(r"\s", text[-99:])[-1])
    return re.sub(r"(\W)" if whole else r"([^\w\s])", r"\\\1", value)


def _name_of(written: str, text: str, place: int) -> tuple[str, int]:
    """Returns what stands after a ``$``, and the place after it, or after the command in parentheses."""
    if written != "(":
        return written.strip("{}"), place
    first, depth = place, 1
    while place < len(text) and depth:
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        place += 1
    return f"({text[first:place]}", place


def _value(name: str, variables: Mapping[str, str]) -> str:
    """Returns the value of a variable; what has no value is put between NULs."""
    plain = "".join(_UNKNOWN.split(name)[::2]).replace('"', "").replace("'", "")
    return variables.get(name, f"\0${plain}\0")


def _after_program(words: list[str], variables: dict[str, str]) -> list[str] | None:
    """Returns the words after DLBS's program; of other commands, it keeps the variables, and returns None."""
    while words and words[0] in _RESERVED:
        words = words[1:]
    begun = 1 if words and words[0] in _DECLARING else 0
    declared = [_ASSIGNED.fullmatch(each) for each in words[begun:]]
    if declared and all(declared):
        variables.update((each[1], each[2]) for each in declared if each)
        return None
    while words and _ASSIGNED.fullmatch(words[0]):
        words = words[1:]
    for place, word in enumerate(words):
        if word.endswith(PROGRAM) and (place == 0 or "python" in words[0]):
            return words[place + 1 :]
    return None
