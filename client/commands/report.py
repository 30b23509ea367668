"""``agent report`` and ``agent info evaluation all``: a page in one file, every report in one folder."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from inferometer.client.api.stored import readable_spans
from inferometer.client.cli.command import FILE, WHOLE_NUMBER, Command, boolean, current_invocation, option
from inferometer.client.commands.evaluation import (
    ChosenEvaluations,
    explain,
    filter_options,
    rows_of,
    say_left_out,
    say_none,
    undisturbed,
)
from inferometer.evaluators.evaluation import Evaluation, Measurement
from inferometer.evaluators.kinds.traces import TraceReport
from inferometer.evaluators.reports.base import REPORTS, Report, find_report
from inferometer.evaluators.reports.writer import Format, write
from inferometer.evaluators.store.evaluation_store import EvaluationStore
from inferometer.manifests.errors import OutputError


@click.command(cls=Command)
@option("-o", "--output", type=FILE, default=Path("report.html"), metavar="FILE", help="Write to this file.")
@filter_options
@option(
    "--details",
    type=WHOLE_NUMBER,
    default=50,
    metavar="N",
    help="Include the times of all batches, the queries of loads and the layers of the newest N.",
)
@option("--compared", type=WHOLE_NUMBER, default=8, metavar="N", help="Compare the newest N with each other.")
@boolean("--overwrite", help="Replace the file if it exists.")
def report(output: Path, details: int, compared: int, overwrite: bool, **chosen: Any) -> None:
    """Write the evaluations as a page, in one file that any browser opens without a network.

    It has a table with filters and sorting, a view of each evaluation with its figures, pictures and the
    command that runs it again, and comparisons.
    """
    from inferometer.client.web.page import report_text
    from inferometer.evaluators.kinds.overview import OverviewReport
    from inferometer.evaluators.reports.output_file import OutputFile

    wanted, file = ChosenEvaluations(**chosen), OutputFile(output, appendable=False)
    if not overwrite:
        file.refuse_existing()
    with closing(current_invocation().open_store()) as store:
        unread: list[str] = []
        found = wanted.find(store, OverviewReport(), lambda error: unread.append(str(error)))
        text = report_text(
            found,
            readable_spans(store, say_left_out),
            source=store.location,
            made_at=datetime.now(timezone.utc),
            details=details,
            compared=compared,
            left_out=unread,
        )
        (file.replace if overwrite else file.create)(text)
        say_none(found, store)
    noun = "evaluation" if len(found) == 1 else "evaluations"
    click.echo(f"wrote {output}: {len(found)} {noun}, {len(text.encode()) / 1000:,.0f} kB")


_ENDINGS = {Format.TABLE: "txt", Format.CSV: "csv", Format.JSON: "json", Format.MARKDOWN: "md"}


@click.command("all", cls=Command)
@filter_options
@option(
    "-f",
    "--format",
    "formats",
    type=click.Choice([f.value for f in Format], case_sensitive=False),
    multiple=True,
    default=[Format.CSV.value],
    help="Format of the files; repeat the option for several.",
)
@option(
    "-o", "--output", type=FILE, default=Path("evaluation-reports"), metavar="DIR", help="Folder to write."
)
@option(
    "--plot",
    "pictures",
    type=click.Choice(["html", "svg", "png"], case_sensitive=False),
    multiple=True,
    help="Also plot each report.",
)
@boolean("--overwrite", help="Replace the files of these names if the folder exists.")
@boolean("--include_profiled", help="Also show the latency of evaluations that ran under a profiler.")
def all_reports(
    formats: Sequence[str],
    output: Path,
    pictures: Sequence[str],
    overwrite: bool,
    include_profiled: bool,
    **chosen: Any,
) -> None:
    """Write every report on the evaluations into a folder.

    Each report is a file with its name. A report without rows has only its headings, and stderr gives the
    reason.
    """
    wanted, invocation = ChosenEvaluations(**chosen), current_invocation()
    folder = _Folder(output, overwrite=overwrite)
    try:
        writing = invocation.waiting.during("writing reports")
        with writing, closing(invocation.open_store()) as store:
            found: dict[tuple[type[Measurement], ...], Sequence[Evaluation]] = {}
            for name in REPORTS:
                report = find_report(name)
                if report.takes not in found:
                    found[report.takes] = wanted.find(store, report)
                taken = found[report.takes]
                left = report.undisturbed and not include_profiled
                shown = undisturbed(taken, f"{name}: ") if left else taken
                endings = [Format(each.lower()) for each in formats]
                _write(report, shown, store, folder.path, endings, [each.lower() for each in pictures])
            say_none([each for taken in found.values() for each in taken], store)
        for file in folder.publish():
            click.echo(file)
    finally:
        folder.close()


def _write(
    report: Report[Any],
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
        shown = report.on_a_page() if each is Format.MARKDOWN else report
        count = write(shown.columns, rows_of(shown, evaluations, store), each, path)
    if isinstance(report, TraceReport):
        explain(report, evaluations, count, f"{report.name}: ")
    if pictures and count:
        from inferometer.evaluators.drawing.writer import PictureFile  # needs what only pictures need

        rows = list(rows_of(report, evaluations, store))
        for ending in dict.fromkeys(pictures):
            picture = PictureFile(folder / f"{report.name}.{ending}")
            picture.write(report, evaluations, rows, datetime.now(timezone.utc))


class _Folder:
    """A folder that appears with all of its files, or not at all."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self._shown = path
        self._target = Path(os.path.realpath(path))  # a link stays one, and "." has a folder that it is in
        if path.exists() and not path.is_dir():
            raise OutputError(f"{path}: is no folder; name another one with --output")
        if path.exists() and not overwrite:
            raise OutputError(f"{path} exists; overwrite its reports (--overwrite), or name another --output")
        # Beside the folder, so that it can take its place; within one that is there, which may be a mount.
        beside = self._target if self._target.is_dir() else self._target.parent
        self.path = beside / f".inferometer-{uuid.uuid4().hex}.tmp"
        try:
            self.path.mkdir()
        except OSError as error:
            raise OutputError(f"{path}: cannot be made: {error.strerror or error}") from error

    def publish(self) -> Sequence[Path]:
        """Moves the files to where they belong, and returns their paths."""
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
