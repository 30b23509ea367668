"""The options that select evaluations for a report, and the query of the store.

Functions import what the options do not need, so that help and completion are fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from inferometer.client.cli.command import WEIGHTS, WHOLE_NUMBER, boolean, database_options, option, options
from inferometer.client.cli.output import echo
from inferometer.manifests.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from inferometer.evaluators.evaluation import Evaluation
    from inferometer.evaluators.reports.base import Report, Row
    from inferometer.evaluators.reports.trace_report import TraceReport
    from inferometer.evaluators.store.evaluation_store import EvaluationStore


filter_options = options(
    database_options,
    option("--model_name", metavar="NAME", help="Only this model."),
    option("--model_version", metavar="VERSION", help="Only this version of the model."),
    option("--framework_name", metavar="NAME", help="Only this framework."),
    option("--framework_version", metavar="VERSION", help="Only this version of the framework."),
    option("--arch", metavar="NAME", help="Only machines of this architecture, such as x86_64."),
    option("--hostname", metavar="NAME", help="Only this machine."),
    option("--batch_size", type=WHOLE_NUMBER, metavar="N", help="Only this batch size."),
    option("--weights", type=WEIGHTS, help="Only evaluations with these weights."),
    option("--limit", type=int, default=-1, metavar="N", help="The newest N evaluations; -1 for all."),
    boolean("--include_interrupted", help="Also show interrupted and failed evaluations."),
    option(
        "--id",
        "evaluation_id",
        metavar="ID",
        help="Only this evaluation, or those of this group; a unique prefix of the id is enough.",
    ),
)
"""Adds the options that choose evaluations; each left out means any."""


class ChosenEvaluations:
    """The evaluations that ``filter_options`` choose, under the options' names.

    Raises:
        ConfigurationError: The limit is invalid.
    """

    def __init__(
        self,
        *,
        arch: str | None,
        batch_size: int | None,
        weights: str | None,
        limit: int,
        include_interrupted: bool,
        evaluation_id: str | None,
        **names: str | None,
    ) -> None:
        from inferometer.agent.inference.predictor import Weights
        from inferometer.evaluators.store.evaluation_store import EvaluationFilter

        if limit != -1 and limit < 1:
            raise ConfigurationError(f"limit is {limit}; it must be at least 1, or -1 for all")
        self._wanted = EvaluationFilter(
            architecture=arch,
            batch_size=batch_size or None,
            weights=Weights(weights.lower()) if weights else None,
            limit=None if limit == -1 else limit,
            include_interrupted=include_interrupted or evaluation_id is not None,
            evaluation_id=evaluation_id,
            kinds=None,
            stability=None,
            offset=0,
            **names,
        )

    def find(
        self,
        store: EvaluationStore,
        report: Report[Any],
        on_unreadable: Callable[[StoreError], None] = lambda _: None,
    ) -> Sequence[Evaluation]:
        """Returns the evaluations that a report takes, the newest first; reports those that cannot be read.

        ``on_unreadable`` is called with the error of each of those, after it is printed.

        Raises:
            UnknownEvaluationError: Several ids begin with what was given as one.
            StoreError: The database cannot be read.
        """
        from inferometer.client.api.stored import whole_id

        given, kinds = self._wanted.evaluation_id, tuple(taken.kind for taken in report.takes) or None
        whole = None if given is None else whole_id(store, given)
        wanted = replace(self._wanted, evaluation_id=whole, kinds=kinds)

        def left_out(error: StoreError) -> None:
            say_left_out(error)
            on_unreadable(error)

        return store.find(wanted, left_out)


def say_left_out(error: StoreError) -> None:
    """Names on stderr an evaluation, or a trace, that cannot be read."""
    click.echo(f"warning: left out {error}", err=True)


def say_none(found: Sequence[Evaluation], store: EvaluationStore) -> None:
    """Reports on stderr that no evaluation was found, if so."""
    if not found:
        echo(f"no evaluation in {store.location} matches", err=True)


def rows_of(report: Report[Any], evaluations: Sequence[Evaluation], store: EvaluationStore) -> Iterator[Row]:
    """Yields the rows of a report, with the spans that it needs; reports traces that cannot be read."""
    from inferometer.evaluators.reports.trace_report import TraceReport

    if isinstance(report, TraceReport):
        from inferometer.client.api.stored import readable_spans

        return report.rows_of(evaluations, readable_spans(store, say_left_out))
    return report.rows(evaluations)


def undisturbed(evaluations: Sequence[Evaluation], heading: str = "") -> Sequence[Evaluation]:
    """Leaves out evaluations that ran under a profiler, and reports it after a heading."""
    kept = [evaluation for evaluation in evaluations if not evaluation.profiled]
    if left_out := len(evaluations) - len(kept):
        echo(
            f"{heading}left out {left_out} of {len(evaluations)} evaluations: they ran under a profiler, "
            "which slows the model down (--include_profiled shows them)",
            err=True,
        )
    return kept


def explain(
    report: TraceReport[Any], evaluations: Sequence[Evaluation], rows: int, heading: str = ""
) -> None:
    """Prints after a heading why there are no rows, and what the existing traces cannot provide."""
    for reason in _reasons(report, evaluations, rows):
        echo(f"{heading}{reason}", err=True)


def _reasons(report: TraceReport[Any], evaluations: Sequence[Evaluation], rows: int) -> Iterator[str]:
    traced = [e for e in evaluations if e.trace is not None and e.trace_level >= report.level]
    if evaluations and not traced:
        yield (
            f"none of the {len(evaluations)} evaluations was traced deep enough; "
            f"evaluate with --trace_level={report.level.name}"
        )
    short = [e for e in report.taken(traced) if not len(e.measurement.full_ns)]
    if report.of_full_batches and short:
        yield (
            f"left out {len(short)} of {len(evaluations)} evaluations: none of their batches held the full "
            "batch size; evaluate with a smaller --batch_size"
        )
    elif traced and not rows:
        notes = dict.fromkeys(note for e in traced if e.trace for note in e.trace.notes)
        yield from notes or (f"the traces of {len(traced)} evaluations hold nothing of the kind",)
