"""Requests for batch-by-batch evaluations, and their options: ``predict dataset`` and ``predict urls``.

Because help shows their options, slow imports happen only where they are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.evaluators.jobs.options import (
    BATCH_SIZE,
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    TARGET_CI_PERCENT,
    TOP_CLASSES,
    Range,
    check_number,
    check_options,
    declared,
    further,
)
from inferometer.evaluators.jobs.request import ModelRequest
from inferometer.manifests.errors import ConfigurationError

_LARGEST = 2**31 - 1  # requests and some databases cannot hold larger numbers
_DISTURBING = (TraceLevel.MODEL_TRACE, TraceLevel.FRAMEWORK_TRACE, TraceLevel.SYSTEM_LIBRARY_TRACE)
"""Trace levels at which times are measured that deeper levels would distort."""
LENGTH = ("min_duration_s", "min_batches", "target_ci_percent", "time_budget_s")
"""The options that determine how long to measure."""
_KNOWN = {
    *("batch_size", "partition_list_size", "num_file_parts", "warmup_num_file_parts", "fail_on_error"),
    *LENGTH,
}
"""The options that documents and comparisons handle in their own way."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The options of a batch-by-batch evaluation, which are stored with it.

    Attributes:
        batch_size: The number of inputs in one batch; the last batch may contain fewer.
        feature_limit: The number of best classes kept for each input; 0 means all.
        target_ci_percent: The target half-width of p50's interval, in percent of p50; None sets no target.
            See ``measurement.LengthPlan``.
        time_budget_s: The time after which repetition ends even if the target or a minimum is not reached;
            None means 30 s for a target, and no limit for a minimum.

    Raises:
        ConfigurationError: A number is out of range, or two conflict with each other; the message names them.
    """

    batch_size: int = declared(
        MISSING,
        "Inputs per batch; predict dataset takes several with commas, and prints one table of them. "
        "Unless given, 1 for a model of images of any size.",
        "N",
        within=COUNT,
        flags=("-b", "--batch_size"),
        default_text=f"{BATCH_SIZE}",
    )
    partition_list_size: int = declared(
        MISSING,
        "Inputs per part of the dataset.",
        "N",
        within=NOT_NEGATIVE,
        flags=("-p", "--partition_list_size"),
        default_text="the batch size",
    )
    num_file_parts: int = declared(
        -1, "Parts to evaluate, once; -1 for all.", "N", default_text="all, and again for --target_ci"
    )
    warmup_num_file_parts: int = declared(
        1, "Parts to run first without measuring.", "N", within=NOT_NEGATIVE
    )
    feature_limit: int = TOP_CLASSES
    fail_on_error: bool = declared(False, "Stop at the first input that fails.")
    min_duration_s: float = declared(
        0.0, "Repeat the inputs until S seconds are measured.", "S", within=NOT_NEGATIVE, shows_default=False
    )
    min_batches: int = declared(
        0,
        "Repeat the inputs until N full batches are measured.",
        "N",
        within=NOT_NEGATIVE,
        shows_default=False,
    )
    target_ci_percent: float | None = declared(
        None,
        "Repeat the inputs for a 95 % interval of p50 within ±PERCENT, for a time that a pilot sets.",
        "PERCENT",
        within=Range(0, 100, open=True, closed_above=True),
        flags=("--target_ci",),
        default_text=f"{TARGET_CI_PERCENT:g} for a whole dataset, not for URLs or deep traces",
    )
    time_budget_s: float | None = declared(
        None, "End repeating after S seconds.", "S", within=POSITIVE, default_text="30 for --target_ci"
    )

    def __post_init__(self) -> None:
        self._check_length()
        check_options(self)
        check_number("partition_list_size", self.partition_list_size, COUNT)
        check_number("feature_limit", self.feature_limit, NOT_NEGATIVE)
        if self.num_file_parts == 0 or self.num_file_parts < -1:
            raise ConfigurationError(
                f"num_file_parts is {self.num_file_parts}; it must be at least 1, or -1 for all"
            )
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Integral) and int(value) > _LARGEST:
                raise ConfigurationError(f"{each.name} is {value}; it must be at most {_LARGEST}")

    @property
    def repeats(self) -> bool:
        """Whether the dataset is repeated until enough is measured."""
        return bool(self.min_duration_s or self.min_batches or self.target_ci_percent is not None)

    @property
    def further(self) -> dict[str, Any]:
        """The options that documents and comparisons list by name, if they differ from their defaults."""
        return further(self, _KNOWN)

    def inputs_of(self, size: int) -> int:
        """Returns how many distinct inputs of a dataset of ``size`` inputs are evaluated."""
        parts = self.num_file_parts
        return size if parts < 0 else min(size, parts * self.partition_list_size)

    def _check_length(self) -> None:
        duration_s, target, budget_s = self.min_duration_s, self.target_ci_percent, self.time_budget_s
        if not all(each is None or isinstance(each, Real) for each in (duration_s, target, budget_s)):
            return  # check_options says so
        if not (math.isfinite(duration_s) and duration_s >= 0):
            raise ConfigurationError(f"min_duration is {duration_s}; it must be a finite number of seconds")
        if target is not None and not 0 < target <= 100:
            raise ConfigurationError(f"target_ci is {target}; it must be above 0 and at most 100 percent")
        if budget_s is not None and not (math.isfinite(budget_s) and budget_s > 0):
            raise ConfigurationError(f"time_budget is {budget_s}; it must be above 0 s and finite")
        if budget_s is not None and duration_s > budget_s:
            raise ConfigurationError(
                f"min_duration {duration_s:g} s is longer than time_budget {budget_s:g} s; "
                "give a longer time_budget, or leave it out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlsOptions:
    """The options of ``predict urls`` that ``predict dataset`` lacks or has under different names."""

    urls_file_path: Path = declared(
        MISSING,
        "File with one URL or path per line; blank lines and # comments are skipped, paths are relative to "
        "the file.",
        "FILE",
        reads=True,
    )
    duplicate_input: int = declared(1, "How often to repeat the list.", "N", within=Range(1, _LARGEST))
    num_file_parts: int = declared(
        -1,
        "Parts to evaluate; -1 for all.",
        "N",
        within=Range(-1, _LARGEST),
        flags=("--num_urls_parts", "--num_url_parts"),
    )
    warmup_num_file_parts: int = declared(
        1,
        "Parts to run first without measuring.",
        "N",
        within=Range(0, _LARGEST),
        flags=("--num_warmup_url_parts",),
    )

    def __post_init__(self) -> None:
        check_options(self)

    def choice(self) -> dict[str, Any]:
        """Returns the fields of the ``DatasetChoice``."""
        return {"urls_path": Path(self.urls_file_path), "duplicates": self.duplicate_input}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest(ModelRequest):
    """A request to evaluate a model over a dataset, batch by batch.

    Attributes:
        options: The amount of data, the batches, and the number of classes to keep for each prediction.
        measure_enough: Whether to repeat the whole dataset until the interval of p50 reaches
            ``TARGET_CI_PERCENT``, if the options set neither an amount nor a duration. URLs are measured
            once, to spare other people's servers, and so are traces deeper than APPLICATION_TRACE.
        keep_most: The maximum number of predictions to keep, starting at the first input; None means all.

    Raises:
        ConfigurationError: A leveled evaluation has only one level; a time budget is given but nothing is
            repeated; the model does not support the batch size; or it is in memory, where fresh processes
            cannot read it.
    """

    options: BatchOptions = BatchOptions(BATCH_SIZE, BATCH_SIZE)
    repeat: int = declared(
        1,
        "Repeat N times, each in a fresh process, as one group; its last line is the interval over the "
        "processes.",
        "N",
        within=Range(1, 1000),
    )
    trace_level: TraceLevel = declared(
        TraceLevel.APPLICATION_TRACE,
        f"Trace level: {', '.join(level.name for level in TraceLevel)}.",
        "LEVEL",
        default_text="APPLICATION_TRACE",
        made=TraceLevel.named,
    )
    leveled: bool = declared(
        False,
        "Evaluate once at each level that a deeper one would disturb: MODEL_TRACE, FRAMEWORK_TRACE, "
        "on a GPU SYSTEM_LIBRARY_TRACE; --trace_level names another deepest one.",
    )
    measure_enough: bool = True
    keep_most: int | None = 0

    def __post_init__(self) -> None:
        check_options(self)
        self.system.check_batches(self.options.batch_size)
        if self.repeat > 1 and self.system.given is not None and self.system.given.in_memory is not None:
            raise ConfigurationError(
                "repeat starts fresh processes, but a model in memory is only in this one; save it to a file"
            )
        if self.leveled and self.trace_level < TraceLevel.FRAMEWORK_TRACE:
            raise ConfigurationError(
                f"leveled down to {self.trace_level.name} is only one level; "
                "name FRAMEWORK_TRACE or a deeper trace_level, or leave it out"
            )
        options = self.options
        if options.time_budget_s is not None and not self.options_at(self.trace_level).repeats:
            raise ConfigurationError(
                "time_budget limits how long the dataset is repeated, but here it is not repeated; "
                "give target_ci, min_batches or min_duration too"
            )

    def options_at(self, level: TraceLevel) -> BatchOptions:
        """Returns the options of the evaluation at a trace level, which determines its default length."""
        options = self.options
        chosen = not self.measure_enough or options.repeats or options.num_file_parts > 0
        if chosen or self.dataset.urls_path is not None or level > TraceLevel.APPLICATION_TRACE:
            return options
        return replace(options, target_ci_percent=TARGET_CI_PERCENT)

    @property
    def trace_levels(self) -> Sequence[TraceLevel]:
        """The trace level of each evaluation, in order; each repetition begins with the shallowest."""
        deepest = self.trace_level
        shallower = (level for level in _DISTURBING if level < deepest) if self.leveled else ()
        return (*shallower, deepest) * self.repeat
