"""``--plot``: the picture of a report, beside its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from manifests.errors import ConfigurationError

if TYPE_CHECKING:  # pictures are drawn with what only --plot needs
    from evaluators.evaluation import Evaluation
    from evaluators.plots.writer import PictureFile
    from evaluators.reports.base import Report, Row


def plot_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option that draws a picture."""
    return click.option(
        "--plot",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Draw a picture of the rows into this file: .html, .svg or .png.",
    )(function)


def open_picture(
    plot: Path | None, output: Path | None, overwrite: bool, append: bool
) -> tuple[PictureFile | None, bool]:
    """Makes sure that a picture can be drawn and written, before anything is read.

    Returns:
        Where it goes, if one was asked for, and whether ``overwrite`` holds for the output too: without an
        output file it is for the picture alone.

    Raises:
        ConfigurationError: The file has a wrong ending, or is that of the rows, or Matplotlib is missing.
        OutputError: The file is there and is not to be overwritten, or cannot be written.
    """
    if plot is None:
        return None, overwrite
    if output is not None and plot.resolve() == output.resolve():
        raise ConfigurationError(f'the picture and the rows cannot both go to "{plot}"; name two files')
    if overwrite and append:
        raise ConfigurationError("append and overwrite exclude each other; choose one")
    from evaluators.plots.writer import PictureFile

    return PictureFile(plot, overwrite=overwrite), overwrite and output is not None


def draw(
    picture: PictureFile | None, report: Report, evaluations: Sequence[Evaluation], rows: Sequence[Row]
) -> None:
    """Draws a picture of a report's rows, if one was asked for, or says that there is nothing to draw.

    Raises:
        OutputError: The file cannot be written.
    """
    if picture is None:
        return
    if picture.write(report, evaluations, rows, datetime.now(timezone.utc)):
        click.echo(f"drawn to {picture}", err=True)
    else:
        click.echo(f"nothing to draw: {picture} is not written", err=True)
