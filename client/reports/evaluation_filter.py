"""Which evaluations a report is on: the options, and what the store has of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from agent.predictor import Weights
from client.command import boolean, database_options
from client.invocation import current_invocation
from client.reports.evaluation_id import whole_id
from evaluators.evaluation import Evaluation
from evaluators.reports.base import Report, Row
from evaluators.reports.trace_report import TraceReport
from evaluators.store.base import EvaluationFilter, EvaluationStore
from manifests.errors import ConfigurationError, StoreError


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose evaluations; each left out means any."""
    options = (
        click.option("--model_name", metavar="NAME", help="Only this model."),
        click.option("--model_version", metavar="VERSION", help="Only this version of the model."),
        click.option("--framework_name", metavar="NAME", help="Only this framework."),
        click.option("--framework_version", metavar="VERSION", help="Only this version of the framework."),
        click.option("--arch", metavar="NAME", help="Only machines of this architecture, such as x86_64."),
        click.option("--hostname", metavar="NAME", help="Only this machine."),
        click.option(
            "--batch_size", type=click.IntRange(min=0), default=0, metavar="N", help="Only this batch size."
        ),
        click.option(
            "--weights",
            type=click.Choice([w.value for w in Weights], case_sensitive=False),
            help="Only evaluations of such weights.",
        ),
        click.option(
            "--limit",
            type=int,
            default=-1,
            show_default=True,
            metavar="N",
            help="The newest N evaluations; -1 for all.",
        ),
        boolean("--include_interrupted", help="Show evaluations that were stopped, too."),
        click.option(
            "--id",
            "evaluation_id",
            metavar="ID",
            help="Only this evaluation, or those of this group; the beginning of the id is enough.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return database_options(function)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenEvaluations:
    """The evaluations that ``filter_options`` choose, under the options' names.

    Raises:
        ConfigurationError: The limit makes no sense.
    """

    model_name: str | None
    model_version: str | None
    framework_name: str | None
    framework_version: str | None
    arch: str | None
    hostname: str | None
    batch_size: int
    weights: str | None
    limit: int
    include_interrupted: bool
    evaluation_id: str | None
    database_address: str | None
    database_name: str | None

    def __post_init__(self) -> None:
        if self.limit != -1 and self.limit < 1:
            raise ConfigurationError(f"limit is {self.limit}; it must be at least 1, or -1 for all")

    @contextmanager
    def open_store(self) -> Iterator[EvaluationStore]:
        """Opens the database that the options name, and closes it.

        Raises:
            StoreError: It cannot be reached.
        """
        store = current_invocation().open_store(self.database_address, self.database_name)
        try:
            yield store
        finally:
            store.close()

    def find(self, store: EvaluationStore, kind: str) -> Sequence[Evaluation]:
        """Returns the evaluations of a kind, the newest first; says which cannot be read.

        Raises:
            StoreError: The database cannot be read, or several ids begin with what was given as one.
        """
        wanted = EvaluationFilter(
            model_name=self.model_name,
            model_version=self.model_version,
            framework_name=self.framework_name,
            framework_version=self.framework_version,
            architecture=self.arch,
            hostname=self.hostname,
            batch_size=self.batch_size or None,
            weights=Weights(self.weights.lower()) if self.weights else None,
            limit=None if self.limit == -1 else self.limit,
            include_interrupted=self.include_interrupted or self.evaluation_id is not None,
            evaluation_id=None if self.evaluation_id is None else whole_id(store, self.evaluation_id),
            kind=kind,
        )
        return store.find(wanted, _say_unreadable)


def say_none(found: Sequence[Evaluation], store: EvaluationStore) -> None:
    """Says so where no evaluation was found."""
    if not found:
        click.echo(f"no evaluation in {store.location} matches", err=True)


def _say_unreadable(error: StoreError) -> None:
    click.echo(f"warning: left out {error}", err=True)


def rows_of(report: Report, evaluations: Sequence[Evaluation], store: EvaluationStore) -> Iterator[Row]:
    """Yields the rows of a report, with the spans that it needs.

    Raises:
        StoreError: Spans cannot be read.
    """
    if isinstance(report, TraceReport):
        return report.rows_of(evaluations, store.spans)
    return report.rows(evaluations)


def undisturbed(evaluations: Sequence[Evaluation], heading: str = "") -> Sequence[Evaluation]:
    """Leaves out evaluations that ran under a profiler, and says so, after a heading."""
    kept = [evaluation for evaluation in evaluations if not evaluation.profiled]
    if left_out := len(evaluations) - len(kept):
        click.echo(
            f"{heading}left out {left_out} of {len(evaluations)} evaluations: they ran under a profiler, "
            "which slows the model down (--include_profiled shows them)",
            err=True,
        )
    return kept


def explain(report: TraceReport, evaluations: Sequence[Evaluation], rows: int, heading: str = "") -> None:
    """Says after a heading why there are no rows, and what the traces that there are cannot give."""
    for reason in _reasons(report, evaluations, rows):
        click.echo(f"{heading}{reason}", err=True)


def _reasons(report: TraceReport, evaluations: Sequence[Evaluation], rows: int) -> Iterator[str]:
    traced = [e for e in evaluations if e.trace is not None and e.options.trace_level >= report.level]
    if evaluations and not traced:
        yield (
            f"none of the {len(evaluations)} evaluations was traced deep enough; "
            f"evaluate with --trace_level={report.level.name}"
        )
    short = [e for e in traced if not len(e.batches.full(e.options.batch_size))]
    if report.of_full_batches and short:
        yield (
            f"left out {len(short)} of {len(evaluations)} evaluations: none of their batches held the full "
            "batch size; evaluate with a smaller --batch_size"
        )
    elif traced and not rows:
        notes = dict.fromkeys(note for e in traced if e.trace for note in e.trace.notes)
        yield from notes or (f"the traces of {len(traced)} evaluations hold nothing of the kind",)
