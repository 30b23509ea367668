"""The ``agent`` command: its root, and what becomes of errors."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from client.command import Group

PROGRAM = "agent"


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from agent import __version__

        click.echo(f"inferscope {__version__}")
        context.exit()


@click.group(
    cls=Group,
    lazy={
        "compare": ("client.compare.command:compare", "Say whether some evaluations are worse than others."),
        "database": ("client.database:database", "Publish results that were kept in files."),
        "download": ("client.download:download", "Download the files of models and datasets into the cache."),
        "export": ("client.export:export", "Write a model as an ONNX file."),
        "info": ("client.info:info", "Reports on evaluations, models, frameworks and this machine."),
        "manifest": ("client.manifest:manifest", "Check manifests, and print their schema."),
        "predict": ("client.predict:predict", "Evaluate a model and publish what was measured."),
        "serve": ("client.serve:serve", "Serve models to other hosts over gRPC."),
        "status": ("client.status:status", "Say whether a served agent answers."),
        "trace": ("client.trace:trace", "Write stored traces for other programs."),
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
    """Runs the command line and exits; an error is one line on stderr and a code of ``client.exit_codes``."""
    _fill_closed_streams()
    # What gRPC prints of each handshake that fails would stand beside the one line that says why.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(run(list(sys.argv[1:] if args is None else args)))


def run(args: list[str]) -> int:
    """Runs the command line and returns its exit code."""
    try:
        from manifests.errors import InferscopeError  # here, so that Ctrl-C is one line while it is imported

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
    except InferscopeError as error:
        import logging

        from client.exit_codes import exit_code

        logging.getLogger(__name__).debug("failed", exc_info=True)
        return _fail(f"{PROGRAM}: {error}", exit_code(error))
    except OSError as error:  # stdout or stderr: whatever uses other files and sockets says which one it was
        from client.exit_codes import OUTPUT_FAILED

        what = f"{error.filename}: " if error.filename else "the output cannot be written: "
        return _fail(f"{PROGRAM}: {what}{error.strerror or error}", OUTPUT_FAILED)
    return result if isinstance(result, int) else 0


def _fill_closed_streams() -> None:
    """Opens stdin, stdout and stderr where they are closed.

    The next file that is opened, such as the database, would get the number of one that is closed, and what a
    library prints would go into it. Writing to stdout still fails, as it should.
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
    """Text on an open file, of which nothing is left over to be written when the program ends."""
    return io.TextIOWrapper(io.FileIO(number, "w", closefd=False), encoding="utf-8", write_through=True)


def _fail(message: str, code: int) -> int:
    """Says on one line what failed; a name that was given may hold a line break."""
    with suppress(OSError):  # where stderr cannot be written either, the code is all that can be given
        click.echo(" ".join(message.split()), err=True)
    return code
