"""``agent completion``: the shell completion script, and the completions that the script requests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from inferometer.client.cli.command import COMPLETION_VARIABLE, Command
from inferometer.manifests.errors import IMPORT_FAILURES, InferometerError

if TYPE_CHECKING:
    from click.shell_completion import ShellComplete

MOST_S = 5.0
"""The time limit of a completion, in seconds; the first completion reads all manifests."""
_PROGRAM = "agent"
_SORT = "--sort"
_ZSH = """\
#compdef %(prog_name)s

%(complete_func)s() {
    local -a response plain described replacing
    (( ! $+commands[%(prog_name)s] )) && return 1
    response=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \
%(complete_var)s=zsh_complete %(prog_name)s)}")
    # after "--option=" only the value is completed; elsewhere the whole word is, whatever its case
    compset -P '--*=' || replacing=(-U)
    for type key descr in ${response}; do
        if [[ "$type" == "plain" && "$descr" == "_" ]]; then
            plain+=("$key")
        elif [[ "$type" == "plain" ]]; then
            described+=("$key":"$descr")
        elif [[ "$type" == "dir" ]]; then
            _path_files -/
        elif [[ "$type" == "file" ]]; then
            _path_files -f
        fi
    done
    if (( $#described )); then
        _describe -V unsorted described $replacing
    fi
    if (( $#plain )); then
        compadd $replacing -V unsorted -a plain
    fi
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""
_FISH = """\
function %(complete_func)s
    set -l word (commandline -t)
    set -l begin (string match -r -- '^--[^=]+=' $word)
    set -l response (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) \
COMP_CWORD=$word %(prog_name)s)
    for completion in $response
        set -l parts (string split -m 1 "," -- $completion)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2] | string replace -r -- '^' "$begin"
            case file
                __fish_complete_path $parts[2] | string replace -r -- '^' "$begin"
            case plain
                echo "$begin$parts[2]"
        end
    end
end

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""
_SCRIPTS: Mapping[str, str] = {"zsh": _ZSH, "fish": _FISH}
"""Scripts that, unlike click's, complete the value in ``--option=value`` and values with commas."""


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, options, names and ids in a shell.

    \b
    bash   echo 'eval "$(agent completion bash)"' >> ~/.bashrc
    zsh    echo 'eval "$(agent completion zsh)"' >> ~/.zshrc     (after compinit)
    fish   agent completion fish > ~/.config/fish/completions/agent.fish
    """  # noqa: D301 - the backspace tells click not to wrap the lines
    click.echo(_completer(click.get_current_context().find_root().command, shell).source(), nl=False)


def answer_shell(cli: click.Command, instruction: str) -> int:
    """Prints the completions that a script requests; returns the exit code.

    Prints nothing on stderr, and ends the process after ``MOST_S``, because the user is typing.
    """
    shell, _, what = instruction.partition("_")
    with _silence(), _alarm():
        try:
            if what != "complete":
                return 1
            completer = _completer(cli, shell)
            words, incomplete = _split(*completer.get_completion_args())
            # click interprets a value that begins with "-" as an option
            sign = "-" if words[-1:] == [_SORT] and incomplete.startswith("-") else ""
            items = completer.get_completions(words, incomplete.removeprefix(sign))
            for item in items:
                item.value = sign + item.value
            text = "\n".join(map(completer.format_completion, items))
        except (InferometerError, click.ClickException, *IMPORT_FAILURES):
            return 1
    if text:
        click.echo(text)
    return 0


def _completer(cli: click.Command, shell: str) -> ShellComplete:
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise ValueError(f"no completion for {shell}")
    script = _SCRIPTS.get(shell, kind.source_template)

    class Completer(kind):  # type: ignore[misc, valid-type] # a class that click chooses
        source_template = script
        source = ShellComplete.source  # click's class for bash starts a shell to check its version

    return Completer(cli, {}, _PROGRAM, COMPLETION_VARIABLE)


def _split(words: list[str], incomplete: str) -> tuple[list[str], str]:
    """Joins words as click expects them: ``--name=value`` is one word, except for the word being typed.

    bash splits ``--name=value`` into three words. Hyphens in names of options become underscores.
    """
    joined: list[str] = []
    for word in [*words, incomplete]:
        if word == "=" and joined and joined[-1].startswith("--"):
            joined[-1] += "="
        elif joined and joined[-1].startswith("--") and joined[-1].endswith("="):
            joined[-1] += word
        else:
            joined.append(word)
    joined = [_underscored(word) for word in joined]
    name, equals, value = joined[-1].partition("=")
    if equals and name.startswith("--"):
        return [*joined[:-1], name], value
    return joined[:-1], joined[-1]


def _underscored(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if name.startswith("--") else word


@contextmanager
def _silence() -> Iterator[None]:
    """Discards all output to stderr within the context, including that of C libraries."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _alarm() -> Iterator[None]:
    """Ends the process if the body takes longer than ``MOST_S``, for example on a database timeout."""
    before = signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.setitimer(signal.ITIMER_REAL, MOST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
