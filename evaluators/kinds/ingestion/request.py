"""The request to run a loader alone: a dataset, how it is loaded, and for how long.

To add an option, add a field to ``IngestionRequest``. Because help shows the options, slow imports happen
only where they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inferometer.evaluators.jobs import options as defaults
from inferometer.evaluators.jobs.options import check_options, declared, values_of
from inferometer.evaluators.jobs.request import default_system
from inferometer.evaluators.kinds.training.request import TrainingData, check_length, length_of
from inferometer.manifests.errors import ConfigurationError

if TYPE_CHECKING:
    from inferometer.evaluators.jobs.job import SystemRequest

OWN, FRAMEWORK = "own", "framework"
READERS = (OWN, FRAMEWORK)
KEPT = ("batch_size", "reader", "fail_on_error")
"""The options that evaluations store in fields of their own, or not at all."""


@dataclass(frozen=True, slots=True)
class IngestionLength:
    """How long a loader runs.

    Attributes:
        num_batches: The number of measured batches, over as many epochs as needed; None means that
            ``num_epochs`` ends the run.
        num_warmup_batches: The number of preceding batches, which are not measured.
        num_epochs: The number of passes over the data, warm-up included; None: ``num_batches`` ends the run.

    Raises:
        ConfigurationError: Neither option ends the run, or a number is out of range.
    """

    num_batches: int | None = defaults.BENCH_BATCHES
    num_warmup_batches: int = 1
    num_epochs: int | None = None

    def __post_init__(self) -> None:
        check_length(self)
        if self.num_batches is None and self.num_epochs is None:
            raise ConfigurationError("neither num_batches nor num_epochs ends the run; give one of them")

    def total(self, epoch_batches: int) -> int:
        """Returns the number of batches, including the warm-up, up to the limit that is reached first.

        Raises:
            ConfigurationError: The warm-up would use up all batches.
        """
        limits = []
        if self.num_batches is not None:
            limits.append(self.num_warmup_batches + self.num_batches)
        if self.num_epochs is not None:
            limits.append(self.num_epochs * epoch_batches)
        if min(limits) <= self.num_warmup_batches:
            raise ConfigurationError(
                f"num_epochs {self.num_epochs} of {epoch_batches} batches are all within num_warmup_batches "
                f"{self.num_warmup_batches}; give more epochs, or fewer batches to warm up"
            )
        return min(limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestionRequest:
    """A request to load a dataset in batches, as input for a model that is not itself loaded.

    Attributes:
        system: The model, which defines the preprocessing.
        data: The dataset, and how it is loaded.
        reader: ``own``, or ``framework`` for the framework's own iterator of the format, which has threads.

    Raises:
        ConfigurationError: No dataset is named, or an option is not valid.
    """

    system: SystemRequest = field(default_factory=default_system)
    data: TrainingData
    batch_size: int = declared(defaults.BENCH_BATCH_SIZE, "Samples per batch.", "N", within=defaults.COUNT)
    length: IngestionLength = field(default_factory=IngestionLength)
    reader: str = declared(
        OWN,
        "The program's own reader, or the iterator of MXNet for RecordIO, with its own threads.",
        choices=READERS,
        ignores_case=True,
    )
    fail_on_error: bool = declared(False, "Stop at the first input that fails.")

    @classmethod
    def of(cls, system: SystemRequest, values: Mapping[str, Any], data: TrainingData) -> IngestionRequest:
        """Returns the request described by option values, which are given by field name.

        Raises:
            ConfigurationError: A value is not valid, or two values contradict each other.
        """
        length = IngestionLength(num_warmup_batches=values["num_warmup_batches"], **length_of(values))
        return cls(system=system, data=data, length=length, **values_of(cls, {**values}))

    def __post_init__(self) -> None:
        if self.data.is_synthetic:
            raise ConfigurationError("ingestion reads a dataset, but none is named; give data_dir")
        if self.reader not in READERS:
            raise ConfigurationError(f"reader is {self.reader}; allowed: {', '.join(READERS)}")
        if self.reader == FRAMEWORK and self.data.processes:
            raise ConfigurationError("a framework's reader uses threads; leave out the worker processes")
        check_options(self)
        self.data.loader_options(self.batch_size)
