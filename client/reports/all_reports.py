"""``agent info evaluation all``: every report into one folder."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from client.command import Command, boolean
from client.reports.evaluation_filter import (
    ChosenEvaluations,
    explain,
    filter_options,
    rows_of,
    say_none,
    undisturbed,
)
from evaluators.evaluation import Evaluation
from evaluators.reports.base import Report
from evaluators.reports.registry import REPORTS, find_report
from evaluators.reports.trace_report import TraceReport
from evaluators.reports.writer import Format, write
from evaluators.store.base import EvaluationStore
from manifests.errors import OutputError

_ENDINGS = {Format.TABLE: "txt", Format.CSV: "csv", Format.JSON: "json"}


@click.command("all", cls=Command)
@filter_options
@click.option(
    "-f",
    "--format",
    "formats",
    type=click.Choice([f.value for f in Format], case_sensitive=False),
    multiple=True,
    default=[Format.CSV.value],
    show_default=True,
    help="How rows are written; give it again for another format.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("evaluation-reports"),
    show_default=True,
    metavar="DIR",
    help="The folder that is written.",
)
@click.option(
    "--plot",
    "pictures",
    type=click.Choice(["html", "svg", "png"], case_sensitive=False),
    multiple=True,
    help="Draw the picture of each report, too.",
)
@boolean("--overwrite", help="Replace the files of these names if the folder exists.")
@boolean("--include_profiled", help="Show the latency of evaluations that ran under a profiler, too.")
def all_reports(
    formats: Sequence[str],
    output: Path,
    pictures: Sequence[str],
    overwrite: bool,
    include_profiled: bool,
    **chosen: Any,
) -> None:
    """Write every report on the evaluations into a folder.

    Each report is a file of its name. One without rows has its headings only, and it is said why.
    """
    wanted = ChosenEvaluations(**chosen)
    folder = _Folder(output, overwrite=overwrite)
    try:
        with wanted.open_store() as store:
            found: dict[str, Sequence[Evaluation]] = {}
            for name in REPORTS:
                report = find_report(name)
                if report.kind not in found:
                    found[report.kind] = wanted.find(store, report.kind)
                of_kind = found[report.kind]
                left = report.undisturbed and not include_profiled
                shown = undisturbed(of_kind, f"{name}: ") if left else of_kind
                endings = [Format(each.lower()) for each in formats]
                _write(report, shown, store, folder.path, endings, [each.lower() for each in pictures])
            say_none([each for of_kind in found.values() for each in of_kind], store)
        for file in folder.publish():
            click.echo(file)
    finally:
        folder.close()


def _write(
    report: Report,
    evaluations: Sequence[Evaluation],
    store: EvaluationStore,
    folder: Path,
    formats: Sequence[Format],
    pictures: Sequence[str],
) -> None:
    """Writes one report in all formats."""
    count = 0
    for each in dict.fromkeys(formats):  # each reads the spans anew, so that rows need not be kept
        path = folder / f"{report.name}.{_ENDINGS[each]}"
        count = write(report.columns, rows_of(report, evaluations, store), each, path)
    if isinstance(report, TraceReport):
        explain(report, evaluations, count, f"{report.name}: ")
    if pictures and count:
        from evaluators.plots.writer import PictureFile  # needs what only pictures need

        rows = list(rows_of(report, evaluations, store))
        for ending in dict.fromkeys(pictures):
            picture = PictureFile(folder / f"{report.name}.{ending}")
            picture.write(report, evaluations, rows, datetime.now(timezone.utc))


class _Folder:
    """A folder that appears with all of its files, or not at all.

    Args:
        path: Where it will be.
        overwrite: Whether files of its may be replaced if it is there.

    Raises:
        OutputError: It is there and may not be overwritten, or cannot be made.
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self._shown = path
        self._target = Path(os.path.realpath(path))  # a link stays one, and "." has a folder that it is in
        if path.exists() and not path.is_dir():
            raise OutputError(f"{path}: is no folder; name another one with --output")
        if path.exists() and not overwrite:
            raise OutputError(f"{path} exists; overwrite its reports (--overwrite), or name another --output")
        # Beside the folder, so that it can take its place; within one that is there, which may be a mount.
        beside = self._target if self._target.is_dir() else self._target.parent
        self.path = beside / f".inferscope-{uuid.uuid4().hex}.tmp"
        try:
            self.path.mkdir()
        except OSError as error:
            raise OutputError(f"{path}: cannot be made: {error.strerror or error}") from error

    def publish(self) -> Sequence[Path]:
        """Puts the files where they belong, and returns their paths.

        Raises:
            OutputError: They cannot be put there.
        """
        names = sorted(file.name for file in self.path.iterdir())
        try:
            if self._target.exists():
                for name in names:
                    (self.path / name).replace(self._target / name)
            else:
                self.path.rename(self._target)
        except OSError as error:
            raise OutputError(f"{self._shown}: cannot be written: {error.strerror or error}") from error
        return [self._shown / name for name in names]

    def close(self) -> None:
        """Removes what was not published."""
        with suppress(OSError):
            shutil.rmtree(self.path)
