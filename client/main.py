"""The ``agent`` command: its root, and what becomes of errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence

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
        "database": ("client.database:database", "Publish results that were kept in files."),
        "info": ("client.info:info", "Reports on evaluations, models, frameworks and this machine."),
        "predict": ("client.predict:predict", "Evaluate a model and publish what was measured."),
        "serve": ("client.serve:serve", "Serve models to other hosts over gRPC."),
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
    sys.exit(run(list(sys.argv[1:] if args is None else args)))


def run(args: list[str]) -> int:
    """Runs the command line and returns its exit code."""
    from manifests.errors import InferscopeError  # not needed for help

    try:
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
    except BrokenPipeError:  # the reader of stdout went away, as `| head` does
        sys.stderr.close()
        return 141
    except InferscopeError as error:
        import logging

        from client.exit_codes import exit_code

        logging.getLogger(__name__).debug("failed", exc_info=True)
        return _fail(f"{PROGRAM}: {error}", exit_code(error))
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    """Says on one line what failed; a name that was given may hold a line break."""
    click.echo(" ".join(message.split()), err=True)
    return code
