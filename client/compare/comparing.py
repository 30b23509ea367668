"""``agent compare`` from its options to its exit code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from inferometer.client.cli.exit_codes import REGRESSION, SUCCESS
from inferometer.client.cli.invocation import Invocation
from inferometer.client.cli.output import echo, print_rows
from inferometer.client.compare import ACCURACY_THRESHOLD, THRESHOLD
from inferometer.client.reports.evaluation_filter import whole_id
from inferometer.evaluators.comparing.comparison import (
    COLUMNS,
    chosen_figures,
    compare_sides,
    measured_thresholds,
    rows_of,
)
from inferometer.evaluators.comparing.sides import Side
from inferometer.evaluators.comparing.verdict import (
    TOP1,
    Ratio,
    Verdict,
    higher_is_better,
    listed,
    parse_figures,
)
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.measurements.batches import BatchMeasurement
from inferometer.evaluators.precision.processes import processes_of
from inferometer.evaluators.reports.base import Row
from inferometer.evaluators.reports.writer import Format
from inferometer.evaluators.store.evaluation_store import EvaluationFilter, EvaluationStore
from inferometer.manifests.errors import ConfigurationError, UnknownEvaluationError

_DIFFERS = "differs: "
_echo_error = partial(echo, err=True)


def chosen_side(
    store: EvaluationStore, name: str, given: str, notify: Callable[[str], None] = _echo_error
) -> Side:
    """Returns the evaluations that ids or their unique prefixes name, each once.

    Evaluations of a group that ran under a profiler are left out and reported, as a group of trace levels
    holds one that did not. One that is named by its own id is not left out. ``given`` is ids of evaluations
    or groups, separated by commas. ``notify`` is called with a line about what is left out.

    Raises:
        ConfigurationError: Nothing is named, or the evaluations cannot be compared.
        UnknownEvaluationError: An id does not exist, or is ambiguous.
    """
    ids = [word.strip() for word in given.split(",") if word.strip()]
    if not ids:
        raise ConfigurationError(f"{name} names no evaluation; give ids, separated by commas")
    found: dict[str, Evaluation] = {}
    for each in ids:
        found.update({evaluation.id: evaluation for evaluation in _named(store, name, each, notify)})
    return Side(name, tuple(found.values()))


def _named(store: EvaluationStore, name: str, given: str, notify: Callable[[str], None]) -> list[Evaluation]:
    evaluation_id = whole_id(store, given)
    found = store.find(EvaluationFilter(evaluation_id=evaluation_id, include_interrupted=True))
    if not found:
        raise UnknownEvaluationError(
            f"{store.location}: holds no evaluation or group {given}; "
            "the reports of agent info evaluation list them"
        )
    if found[0].id == evaluation_id:
        return list(found)
    undisturbed = [evaluation for evaluation in found if not evaluation.profiled]
    if undisturbed and len(undisturbed) < len(found):
        notify(
            f"{name}: left out {len(found) - len(undisturbed)} of {len(found)} evaluations of the group "
            f"{evaluation_id}: they ran under a profiler, which slows the model down"
        )
    return undisturbed or list(found)


def conclusion(ratios: Sequence[Ratio]) -> str:
    """Returns what follows from all figures together, in one line."""
    found = {verdict: [ratio.figure for ratio in ratios if ratio.verdict is verdict] for verdict in Verdict}
    if found[Verdict.WORSE]:
        worse = "; ".join(_difference(ratio) for ratio in ratios if ratio.verdict is Verdict.WORSE)
        parts = [f"REGRESSION: B is worse than A: {worse}"]
    else:
        parts = ["no regression was shown" if found[Verdict.UNDECIDED] else "no regression"]
    for verdict, words in (
        (Verdict.BETTER, "better in"),
        (Verdict.SAME, "the same in"),
        (Verdict.UNDECIDED, "undecided in"),
    ):
        if found[verdict]:
            parts.append(f"{words} {listed(found[verdict])}")
    return "; ".join(parts)


def _difference(ratio: Ratio) -> str:
    interval = "" if ratio.low is None or ratio.high is None else f" [{ratio.low:.4g}, {ratio.high:.4g}]"
    return f"{ratio.figure} is {ratio.value:.4g} times A's{interval}"


def undecided_line(ratio: Ratio) -> str:
    """Returns why a figure is undecided, and how much worse B may be, in one line."""
    return f"{ratio.figure} is undecided: {_undecided(ratio)}"


def _undecided(ratio: Ratio) -> str:
    if not math.isfinite(ratio.threshold):
        return (
            "the runs of --noise differ by more than 100 % in it, or have no answer at it, and give no "
            "threshold; give more and longer ones, made on a quiet machine"
        )
    if ratio.low is None or ratio.high is None:
        if math.isnan(ratio.value):
            return "neither side has a right answer there"
        return "too few values for an interval; give more or longer runs, or leave it out of --figures"
    worst = ratio.high
    if higher_is_better(ratio.figure):
        worst = 1 / ratio.low if ratio.low else math.inf
    allowed = f"{100 * ratio.threshold:.3g} %"
    if worst <= 1 + ratio.threshold:
        return f"B is the same, or better by more than {allowed}"
    if math.isinf(worst):
        return "B may be worse by any amount"
    bound = f"{100 * (worst - 1):.3g} %" if worst < 2 else f"{worst:.3g} times"
    return f"B may be worse by up to {bound}, where {allowed} is allowed; give more or longer runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """The options, under their names on the command line; ``printing`` has those of ``print_rows``."""

    a: str
    b: str
    noise: str | None = None
    threshold: float | None = None
    accuracy_threshold: float = ACCURACY_THRESHOLD
    figures: str | None = None
    fail_on_undecided: bool = False
    printing: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.noise is not None and self.threshold is not None:
            raise ConfigurationError("--noise measures the threshold that --threshold gives; leave out one")


def run_comparison(invocation: Invocation, request: CompareRequest) -> int:
    """Compares, prints the rows and what follows.

    Returns:
        The exit code.

    Raises:
        InferometerError: The evaluations are not there or not to be compared, or nothing can be written.
    """
    wanted = None if request.figures is None else parse_figures(request.figures)
    reading = invocation.waiting.during("reading evaluations")
    with reading, closing(invocation.open_store()) as store:
        a, b = chosen_side(store, "A", request.a), chosen_side(store, "B", request.b)
        check_disjoint(a, b)
        figures = chosen_figures(a, b, wanted)
        noise = None if request.noise is None else chosen_side(store, "noise", request.noise)
        if noise is not None and (judged := _in_both(noise, b)):
            raise ConfigurationError(
                f"evaluation {judged} of --noise is one of B, which would be judged by itself; "
                "give other runs, such as those of A"
            )
    thresholds = _thresholds(request, noise, a, figures)
    ratios = compare_sides(a, b, figures, thresholds)
    for line in _notes(request, noise, a, b, figures):
        echo(line, err=True, indent=2)
    print_rows(COLUMNS, _rows(a, ratios), **request.printing)
    for ratio in ratios:
        if ratio.verdict is Verdict.UNDECIDED:
            echo(f"warning: {undecided_line(ratio)}", err=True, indent=2)
    printing = request.printing
    for_people = printing["output"] is None and printing["format_name"].lower() == Format.TABLE.value
    echo(conclusion(ratios), err=not for_people, indent=2)
    verdicts = {ratio.verdict for ratio in ratios}
    failed = Verdict.WORSE in verdicts or (request.fail_on_undecided and Verdict.UNDECIDED in verdicts)
    return REGRESSION if failed else SUCCESS


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides compared with the defaults of ``agent compare``, and what it prints.

    Attributes:
        rows: A row of ``COLUMNS`` for each figure.
        notes: What qualifies the rows, one line each.
        conclusion: What follows from all figures together.
        worse: Whether B is worse in a figure.
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    conclusion: str
    worse: bool


def compare_by_default(a: Side, b: Side) -> Comparison:
    """Compares two sides as ``agent compare`` does without options.

    Raises:
        ConfigurationError: They cannot be compared.
    """
    request = CompareRequest(a=a.name, b=b.name)
    check_disjoint(a, b)
    figures = chosen_figures(a, b, None)
    ratios = compare_sides(a, b, figures, _thresholds(request, None, a, figures))
    undecided = (undecided_line(ratio) for ratio in ratios if ratio.verdict is Verdict.UNDECIDED)
    notes = (note for note in _notes(request, None, a, b, figures) if not note.startswith(_DIFFERS))
    worse = any(ratio.verdict is Verdict.WORSE for ratio in ratios)
    return Comparison(tuple(_rows(a, ratios)), (*notes, *undecided), conclusion(ratios), worse)


def _rows(a: Side, ratios: Sequence[Ratio]) -> Iterator[Row]:
    return rows_of(ratios, "inputs" if a.kind is BatchMeasurement else "queries")


def check_disjoint(a: Side, b: Side) -> None:
    """Checks that no evaluation is on both sides.

    Raises:
        ConfigurationError: One is.
    """
    if twice := _in_both(a, b):
        raise ConfigurationError(f"evaluation {twice} is on both sides; compare it with another one")


def _in_both(one: Side, other: Side) -> str | None:
    """The id of an evaluation that is in both; None if there is none."""
    ids = {evaluation.id for evaluation in one.evaluations}
    return next((evaluation.id for evaluation in other.evaluations if evaluation.id in ids), None)


def _thresholds(
    request: CompareRequest, noise: Side | None, a: Side, figures: Sequence[str]
) -> Mapping[str, float]:
    """By how much each figure may differ."""
    accuracy = {TOP1: request.accuracy_threshold}
    if noise is not None:
        noise.check_comparable(a)
        return measured_thresholds(noise, figures) | accuracy
    threshold = THRESHOLD if request.threshold is None else request.threshold
    return dict.fromkeys(figures, threshold) | accuracy


def _conditions(side: Side) -> Iterator[str]:
    """What was not stable on a side, in one line; nothing if all was."""
    found = {each.id: each.conditions.warning for each in side.evaluations if each.conditions}
    suspect = {evaluation_id: warning for evaluation_id, warning in found.items() if warning}
    if suspect:
        first = next(iter(suspect))
        count = f"{len(suspect)} of {len(side.evaluations)} evaluations not stable, such as "
        which = count * (len(side.evaluations) > 1) + f"{first} {suspect[first]}"
        yield f"{side.name}: {which}; its difference may be that of the conditions"


def _notes(
    request: CompareRequest, noise: Side | None, a: Side, b: Side, figures: Sequence[str]
) -> Iterator[str]:
    """What qualifies the rows: the source of the thresholds, what differs, and single runs."""
    if noise is not None:
        yield from (f"{_DIFFERS}{difference}" for difference in noise.differences(a))
    elif request.threshold is None and set(figures) != {TOP1}:
        default = f"threshold {100 * THRESHOLD:g} %, the default"
        yield f"{default}; --noise measures it, --threshold gives another"
    yield from (f"{_DIFFERS}{difference}" for difference in a.differences(b))
    yield from (f"warning: {line}" for side in (a, b) for line in _conditions(side))
    single = [side.name for side in (a, b) if processes_of(side.evaluations) == 1]
    if single and noise is None and set(figures) != {TOP1}:
        which = f"{' and '.join(single)} {'are one process each' if len(single) > 1 else 'is one process'}"
        yield (
            f"warning: {which}, which cannot tell how much the next one would differ; "
            "give 4 or more a side (predict --repeat=4), or --noise"
        )
