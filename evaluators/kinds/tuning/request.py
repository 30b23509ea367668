"""The request to tune a model: the space of serving configurations, and what makes one the best.

Because help shows its options, slow imports happen only where they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferometer.evaluators.jobs.options import (
    COUNT,
    POSITIVE,
    PROBE_MIN_QUERIES,
    Range,
    check_options,
    declared,
    given_options,
    like,
    plain,
)
from inferometer.evaluators.jobs.request import DatasetOptions, default_system, read_precision
from inferometer.evaluators.kinds.load.request import INSTANCES, MaxQpsRequest
from inferometer.manifests.errors import ConfigurationError

if TYPE_CHECKING:
    from inferometer.evaluators.jobs.job import SystemRequest

RATE, RATE_PER_CORE, RATE_PER_WATT = OBJECTIVES = ("rate", "rate_per_core", "rate_per_watt")
_AXES = ("dtype", "instances", "threads", "max_batch_size", "max_queue_delay_ms")
_MOST_CONFIGURATIONS = 1000
_SAME = (
    *("latency_bound_ms", "percentile", "arrival", "min_duration_s", "time_budget_s"),
    *("timeout_ms", "warm_up_queries", "include_preprocess", "force"),
)


def _delays(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        message = f'max_queue_delay_ms is "{text}"; give numbers, separated by commas'
        raise ConfigurationError(message) from None


_like = partial(like, of=MaxQpsRequest)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A serving configuration.

    Attributes:
        instances: The number of instances.
        threads: The threads per operator; None for the framework's default.
        max_batch_size: The maximum number of queries in a batch.
        max_queue_delay_ms: How long the first query of a batch waits for others.
        precision: The name of a ``Precision``; None for that of the model.
    """

    instances: int
    threads: int | None
    max_batch_size: int
    max_queue_delay_ms: float
    precision: str | None = None

    def __str__(self) -> str:
        threads = "default" if self.threads is None else self.threads
        return (
            f"instances {self.instances}, threads {threads}, batch {self.max_batch_size}, "
            f"delay {self.max_queue_delay_ms:g} ms"
        ) + f", {self.precision}" * bool(self.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningRequest:
    """A search for the best serving configuration of a model.

    Attributes that are not listed here are as in ``MaxQpsRequest``.

    Attributes:
        system: The model.
        dtype: The precisions to try, by name; None: that of the model.
        instances: The numbers of instances to try; None: powers of 2 up to the cores, or to 4 if a server
            does not report its cores.
        threads: The threads per operator to try; None: those that fit the cores beside the instances.
        max_batch_size: The maximum numbers of queries in a batch to try.
        max_queue_delay_ms: The delays of the first query of a batch to try.
        objective: What makes a configuration the best: its rate, or its rate divided by its cores, which are
            its instances times their threads, or by the mean power of the device.
        rate_qps: The rate at which the latency is to be the smallest; None: the rate is to be the highest.
        min_score: The lowest first score that a precision may have on the dataset; None for any.
        max_memory_mib: The most that the resident memory of this process and its instances may peak at; None
            for any.
        write_config: The new file that the configuration is written to.
        resume: The id, or a unique prefix of it, of the interrupted tuning that is continued.

    Raises:
        ConfigurationError: A value is out of range, there are several agents, or several precisions at one.
    """

    system: SystemRequest = field(default_factory=default_system)
    dtype: tuple[str, ...] | None = declared(
        None,
        "Types of the numbers to try that a model in code computes with: float32, float16, bfloat16. "
        "Several only in this process.",
        "TYPE,TYPE",
        argument="precision",
        made=lambda text: tuple(text.split(",")),
        default_text="the model's own, float32",
    )
    instances: tuple[int, ...] | None = declared(
        None, "Numbers of instances to try.", "N,N", within=INSTANCES, default_text="1,2,4… up to the cores"
    )
    threads: tuple[int, ...] | None = declared(
        None,
        "CPU threads per operator to try.",
        "N,N",
        within=Range(1, 1024),
        default_text="1,2,4… as many as the cores have room for beside the instances",
    )
    max_batch_size: tuple[int, ...] = declared(
        (1, 2, 4, 8, 16, 32),
        "Maximum numbers of queries per batch to try.",
        "N,N",
        within=Range(1, 4096),
        default_text="1,2,4,8,16,32",
    )
    max_queue_delay_ms: tuple[float, ...] = declared(
        (0.0,),
        "How long the first query of a batch waits for others: the times to try.",
        "MS,MS",
        within=Range(0, 60_000),
        made=_delays,
        default_text="0",
    )
    latency_bound_ms: float = _like("latency_bound_ms")
    percentile: float = _like("percentile")
    objective: str = declared(
        RATE,
        "What is to be the highest within the bound: the rate, or the rate divided by the cores, which are "
        "the instances times their threads, or by the mean power of the GPU or the CPU packages.",
        choices=OBJECTIVES,
    )
    rate_qps: float | None = declared(
        None,
        "Search for the smallest latency at this rate, not for the highest rate within the bound.",
        "QPS",
        within=POSITIVE,
        flags=("--rate",),
    )
    min_score: float | None = declared(
        None,
        "Evaluate the model on the dataset first, and leave out precisions whose first score, such as top-1 "
        "(0 to 1), is below this.",
        "SCORE",
    )
    max_memory_mib: int | None = declared(
        None,
        "Leave out configurations whose resident memory peaks above this, in MiB.",
        "MIB",
        within=COUNT,
        flags=("--max_memory",),
        argument="max_memory",
    )
    arrival: str | None = _like(
        "arrival", help="Arrival process: constant, poisson, gamma:cv=2, bursts:on_s=1,off_s=1."
    )
    min_duration_s: float = _like(
        "min_duration_s",
        default=1.5,
        help="Duration of a probe in the first round; it doubles from round to round.",
        default_text="",
    )
    time_budget_s: float = _like("time_budget_s", default=900.0, help="Time limit of the tuning.")
    timeout_ms: float = _like("timeout_ms")
    warm_up_queries: int = _like(
        "warm_up_queries", help="Queries to send to each configuration without measuring them."
    )
    include_preprocess: bool = _like("include_preprocess")
    force: bool = _like("force")
    synthetic: bool = _like("synthetic", of=DatasetOptions)
    dataset_name: str | None = _like("dataset_name", of=DatasetOptions)
    dataset_path: Path | None = _like("dataset_path", of=DatasetOptions, argument="")  # noqa: RUF009 - a field
    write_config: Path | None = declared(
        None,
        "Also write the configuration to this new file, for agent serve --config=FILE.",
        "FILE",
        flags=("-o", "--write_config"),
    )
    resume: str | None = declared(
        None, "Continue this interrupted tuning; all other options but time_budget must be the same.", "ID"
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.dtype is not None:
            names = tuple(read_precision(str(plain(each)).strip()).value for each in self.dtype)
            object.__setattr__(self, "dtype", names)
            if self.system.agents and len(names) > 1:
                raise ConfigurationError(
                    f"dtype is {','.join(names)}; an agent serves the model in one precision: give a single "
                    "dtype, or leave out agent"
                )
        per_core, per_watt = self.objective == RATE_PER_CORE, self.objective == RATE_PER_WATT
        for wrong, why in (
            (self.rate_qps and self.objective != RATE, "is for the highest rate: leave out rate"),
            (per_core and self.system.session.device.is_gpu, "is for the cores of a CPU"),
            (per_watt and self.system.agents, "reads the power of this machine: leave out agent"),
            (per_watt and self.min_duration_s < 1, "needs a min_duration of at least 1 s for exact power"),
        ):
            if wrong:
                raise ConfigurationError(f"objective {self.objective} {why}")
        if self.max_memory_mib and (self.system.agents or self.system.session.device.is_gpu):
            raise ConfigurationError("max_memory is that of processes on this machine's CPU; leave it out")
        for name in _AXES:
            values = getattr(self, name)
            if values is not None and (not values or len(set(values)) < len(values)):
                raise ConfigurationError(f"{name} is {list(values)}; give each value once, at least one")
        for size in self.max_batch_size:
            self.system.check_batches(size)
        if self.load.synthetic and self.min_score is not None:  # load checks the options of a load
            raise ConfigurationError("min_score needs a dataset with labels, but the inputs are synthetic")

    @property
    def load(self) -> MaxQpsRequest:
        """The request to put the model under load.

        Raises:
            ConfigurationError: An option of the load is not valid.
        """
        dataset = DatasetOptions(dataset_name=self.dataset_name, dataset_path=self.dataset_path).choice()
        return MaxQpsRequest(
            system=self.system_in(self.precisions[0]),
            dataset=dataset,
            synthetic=self.synthetic or (self.system.given is not None and not dataset.is_named),
            seed=self.system.session.seed,
            min_queries=PROBE_MIN_QUERIES,
            initial_qps=self.rate_qps,
            **{name: getattr(self, name) for name in _SAME},
        )

    @property
    def precisions(self) -> tuple[str | None, ...]:
        """The precisions of the space; None for that of the model."""
        return self.dtype or (None,)

    def system_in(self, precision: str | None) -> SystemRequest:
        """Returns the request to open the model in a precision, with the first number of threads."""
        session = self.system.session
        if precision is not None:
            session = replace(session, precision=read_precision(precision))
        if not session.device.is_gpu and not self.system.agents:  # which is told with each configuration
            session = replace(session, threads=(self.threads or (1,))[0])
        return replace(self.system, session=session)

    @property
    def asked(self) -> dict[str, Any]:
        """The options that differ from their defaults, as an evaluation stores them."""
        given = {n: value for n, value in given_options(self).items() if n not in {"write_config", "resume"}}
        return {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}

    def configurations(self, cores: int, *, on_gpu: bool) -> Iterator[Configuration]:
        """Yields the configurations of the space.

        Where the request leaves instances or threads open, it has those whose product is within the cores; a
        GPU's model keeps its framework's threads, and that of a server with 0 known cores its own.

        Raises:
            ConfigurationError: There are too many, or the rate per core is sought and no threads are known.
        """
        powers = tuple(2**power for power in range(cores.bit_length())) or (1, 2, 4)
        threads = self.threads or ((None,) if on_gpu or not cores else powers)
        if self.objective == RATE_PER_CORE and None in threads:
            raise ConfigurationError(
                f"objective {RATE_PER_CORE} needs the threads of the instances; give threads"
            )
        axes = (self.instances or powers, threads, self.max_batch_size, self.max_queue_delay_ms)
        alike = [Configuration(*values) for values in product(*axes)]
        found = [replace(each, precision=precision) for precision in self.precisions for each in alike]
        if cores and not (self.instances and self.threads):
            least = min(self.threads or (1,))
            room = max(cores, min(self.instances or (1,)) * least)
            found = [each for each in found if each.instances * (each.threads or 1) <= room]
        if len(found) > _MOST_CONFIGURATIONS:
            raise ConfigurationError(
                f"the space has {len(found):,} configurations; at most {_MOST_CONFIGURATIONS:,} are allowed; "
                "give fewer values"
            )
        yield from found
