"""The root of the ``agent`` command, its error handling, and the validation of command lines in advance.

Command lines that run later or on another machine are validated so that errors are reported beforehand.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from inferometer.client.api.invocation import quieten_libraries
from inferometer.client.cli.command import COMPLETION_VARIABLE, Group
from inferometer.manifests.errors import ConfigurationError, InferometerError, printable

PROGRAM = "agent"
_COMMANDS = {
    "bench": "Benchmark training, inference or the loading of data, with the options of DLBS.",
    "compare": "Compare evaluations and report regressions.",
    "completion": "Print the script that completes commands in a shell.",
    "data": "Convert, check and download datasets.",
    "database": "Publish results that are kept in files.",
    "download": "Download the files of models and datasets into the cache.",
    "export": "Export a model as an ONNX file.",
    "info": "Reports on evaluations, models, frameworks and this machine.",
    "manifest": "Check manifests, write one for a model's file, and print their schema.",
    "measure": "Run a kind of measurement, such as generation, memory or tuning, or one of a plug-in.",
    "op": "Benchmark single operators in several frameworks.",
    "plan": "Run many experiments that a file describes, resume them, and report on them.",
    "predict": "Evaluate a model and publish the results.",
    "report": "Write evaluations as a page in one file.",
    "score": "Score the predictions of another tool against a dataset.",
    "serve": "Serve models to other hosts over gRPC.",
    "slurm": "Write job scripts for clusters that run Slurm.",
    "status": "Show the health of a served agent.",
    "trace": "Export stored traces for other programs.",
    "tune": "Find the serving configuration with the highest rate within a latency bound.",
    "web": "Serve evaluations as a page, live.",
}
"""The help of each command. A command is the function with its name, by default in a module of that name."""
_FOLDER = "inferometer.client.commands"
_MODULES = {
    "compare": f"{_FOLDER}.evaluation",
    "completion": "inferometer.client.cli.completion",
    "database": f"{_FOLDER}.evaluation",
    "download": f"{_FOLDER}.models",
    "export": f"{_FOLDER}.models",
    "manifest": f"{_FOLDER}.models",
    "measure": f"{_FOLDER}.predict",
    "plan": "inferometer.client.plan.command",
    "report": f"{_FOLDER}.show",
    "status": f"{_FOLDER}.agents",
    "tune": f"{_FOLDER}.predict",
    "web": f"{_FOLDER}.serve",
}
"""The modules of the commands that are not in the module with their name."""


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from inferometer.agent import __version__

        click.echo(f"inferometer {__version__}")
        context.exit()


@click.group(
    cls=Group,
    lazy={
        name: (f"{_MODULES.get(name, f'{_FOLDER}.{name}')}:{name}", line) for name, line in _COMMANDS.items()
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
def cli() -> None:
    """Measure how fast and how well a model really runs, where the time goes, and on what.

    \b
      agent predict dataset --model_name=DigitsCNN --framework_name=MXNet --batch_size=16
      agent info evaluation latency -f csv
    """  # noqa: D301 - the backspace tells click to leave the lines as they are


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line and exits; an error prints one line on stderr. For codes, see ``exit_codes``."""
    _fill_closed_streams()
    quieten_libraries()
    sys.exit(_flushed(run(list(sys.argv[1:] if args is None else args))))


def run(args: list[str]) -> int:
    """Runs the command line and returns its exit code."""
    try:
        if asked := os.environ.get(COMPLETION_VARIABLE):
            from inferometer.client.cli.completion import answer_shell

            return answer_shell(cli, asked)
        result = cli.main(args=args, prog_name=PROGRAM, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else PROGRAM
        return _fail(f"{where}: {error.format_message()} (see {where} --help)", error.exit_code)
    except click.ClickException as error:
        return _fail(f"{PROGRAM}: {error.format_message()}", error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail(f"{PROGRAM}: interrupted", 130)
    except InferometerError as error:
        import logging

        from inferometer.client.cli.output import exit_code

        logging.getLogger(__name__).debug("failed", exc_info=True)
        return _fail(f"{PROGRAM}: {error}", exit_code(error))
    except OSError as error:  # stdout or stderr: errors of other files and sockets are wrapped
        from inferometer.client.cli.output import OUTPUT_FAILED

        what = f"{error.filename}: " if error.filename else "the output cannot be written: "
        return _fail(f"{PROGRAM}: {what}{error.strerror or error}", OUTPUT_FAILED)
    return result if isinstance(result, int) else 0


def _flushed(code: int) -> int:
    """Flushes stdout, so that a failure is reported here and not when Python exits; returns the exit code."""
    try:
        sys.stdout.flush()
    except OSError as error:
        from inferometer.client.cli.output import OUTPUT_FAILED

        with suppress(OSError):  # discard the rest of the buffer
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        reason = f"the output cannot be written: {error.strerror or error}"
        return code or _fail(f"{PROGRAM}: {reason}", OUTPUT_FAILED)
    return code


def _fill_closed_streams() -> None:
    """Opens stdin, stdout and stderr if they are closed.

    Otherwise the next opened file, such as the database, would get the descriptor of a closed stream, and
    libraries would print into it. Writing to stdout still fails, as it should.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)
    if sys.stdout is None:
        sys.stdout = _unbuffered(1)
    if sys.stderr is None:
        sys.stderr = _unbuffered(2)


def _unbuffered(number: int) -> io.TextIOWrapper:
    """Returns an unbuffered text stream, so that nothing is left to flush when the program ends."""
    return io.TextIOWrapper(io.FileIO(number, "w", closefd=False), encoding="utf-8", write_through=True)


def _fail(message: str, code: int) -> int:
    """Prints an error message as one line of printable characters, and returns the exit code."""
    with suppress(OSError):  # if stderr cannot be written either, only the exit code remains
        click.echo(printable(" ".join(message.split())), err=True)
    return code


def parsed_command(words: Sequence[str]) -> click.Context:
    """Parses the words after ``agent``, and returns the click context of the command with its parameters.

    Raises:
        ConfigurationError: The words are not a valid command line of ``agent``.
    """
    command, path, left = _found(words)
    try:
        return command.make_context(path, left)
    except click.ClickException as error:
        raise ConfigurationError(f"{path}: {error.format_message()}") from error


def named_command(words: Sequence[str]) -> click.Command:
    """Returns the command that the words after ``agent`` name, without parsing its options.

    Raises:
        ConfigurationError: The words name no command.
    """
    return _found(words)[0]


def _found(words: Sequence[str]) -> tuple[click.Command, str, list[str]]:
    """Returns the command, the words that name it joined into one text, and the remaining words."""
    command: click.Command = cli
    path, left = "agent", list(words)
    try:
        while isinstance(command, click.Group):
            context = click.Context(command, info_name=path)
            if isinstance(command, Group):
                left = command.with_default(context, left)
            if not left or left[0].startswith("-"):
                raise ConfigurationError(
                    f"{path}: no command is named; begin with one, and put options after it"
                )
            name, found, left = command.resolve_command(context, left)
            if found is None:
                raise ConfigurationError(f'{path}: there is no command "{name}"')
            command, path = found, f"{path} {name}"
        return command, path, left
    except click.ClickException as error:
        raise ConfigurationError(f"{path}: {error.format_message()}") from error
