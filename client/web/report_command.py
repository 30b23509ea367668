"""``agent report``: evaluations as a page in one file."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from inferometer.client.api.stored import readable_spans
from inferometer.client.cli.command import WHOLE_NUMBER, Command, boolean, option
from inferometer.client.cli.current import current_invocation
from inferometer.client.cli.paths import FILE
from inferometer.client.reports.evaluation_filter import (
    ChosenEvaluations,
    filter_options,
    say_left_out,
    say_none,
)


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
    from inferometer.client.web.one_file import report_text
    from inferometer.evaluators.reports.output_file import OutputFile
    from inferometer.evaluators.reports.overview import OverviewReport

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
