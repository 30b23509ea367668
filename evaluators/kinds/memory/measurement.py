"""The request and the measurement of memory: readings of fresh processes, and the figures made of them.

A reading is what Linux has in ``/proc/self/status``, in bytes, at the end of a stage: ``baseline`` (without
the framework), ``framework`` (imported), ``model`` (loaded) or ``batch`` (predicted). ``VmHWM`` is the peak
of resident memory in the stage. ``together`` adds the readings of several processes. The limit is that of a
process's *data*: private writable memory, touched or not (RLIMIT_DATA, setrlimit(2)), without mapped files,
which the system can drop and read again. On a GPU, a reading also has the fields of ``read_gpu_memory`` and,
once the model is loaded, of ``Predictor.read_device_memory``; the limit is that of the process on the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from typing_extensions import TypedDict

from inferometer.evaluators.jobs import options
from inferometer.evaluators.jobs.request import default_system
from inferometer.evaluators.kinds.load.request import instances_option, set_instances

MIB = 1 << 20
_STAGES = ("baseline", "framework", "model", "batch")
_FIELDS = {"VmRSS", "VmHWM", "VmData", "RssAnon", "RssFile"}
_DEVICE_FIELDS = {f"Device{each}{peak}" for each in ("Allocated", "Reserved") for peak in ("", "Peak")}
_CLOSE, _STEPS = 200, 50
"""The largest batch is known to one part in the former; the search for it begins with steps of the latter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """A model whose memory is measured; raises ConfigurationError if an option is invalid."""

    system: Any = field(default_factory=default_system)  # a SystemRequest, whose import takes long
    batch_sizes: tuple[int, ...] | None = options.declared(
        None,
        "Batch sizes to measure, such as 1,8,16.",
        "SIZES",
        within=options.COUNT,
        default_text="up to nearly the limit",
    )
    sequence_lengths: tuple[int, ...] | None = options.declared(
        None,
        "Sizes of dynamic axes, each measured on its own, such as 32,128.",
        "SIZES",
        within=options.COUNT,
        default_text="128; of images, max_dimension or 224",
    )
    memory_limit_mib: int | None = options.declared(
        None,
        "Limit on a process's data (RLIMIT_DATA) or GPU memory, into which the largest batch must fit.",
        "MIB",
        within=options.COUNT,
        flags=("--memory_limit",),
        argument="memory_limit",
        default_text="the memory that the machine or its control group, or the GPU, has available",
    )
    instances: int = instances_option("Instances of the model, which predict a batch each at the same time")
    predictions: int = options.declared(3, "Predictions of each instance.", "N", within=options.COUNT)
    tries: int = options.declared(
        8, "Maximum number of sizes to try under the limit.", "N", within=options.NOT_NEGATIVE
    )

    def __post_init__(self) -> None:
        set_instances(self)
        options.check_options(self)
        for size in self.batch_sizes or ():
            self.system.check_batches(size)

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        return options.given_options(self)


class Point(TypedDict):
    """A process: ``sequence_length`` is 0 for the model's own, and ``failure`` empty if it predicted.

    ``readings`` are those of the stages that it ended, in bytes, by the stage and the name of the field.
    """

    batch_size: int
    sequence_length: int
    limited: bool
    failure: str
    readings: dict[str, dict[str, int]]


def data_bytes(reading: Mapping[str, int]) -> int:
    """Returns the peak of a process's data in a stage: that at the end, and what was freed since the peak.

    The kernel keeps no peak of data, so the latter is resident memory. Sampling the data of 4 models in 3
    frameworks each millisecond found at most 0.2 % more.
    """
    return reading["VmData"] + reading["VmHWM"] - reading["VmRSS"]


def together(readings: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Returns the reading of several processes together, of which the first has the keys.

    Private memory is a sum. Files and shared memory count once, as what the process has that has the most of
    them: the first one runs an instance too, and so has the libraries and the tensors of all. The peak is an
    upper bound: it adds what each has freed since its own. Data also has the shared memory, which no process
    has alone.
    """
    if len(readings) == 1:
        return dict(readings[0])
    sums = {key: sum(each.get(key, 0) for each in readings) for key in readings[0]}
    shared = {key: max(each.get(key, 0) for each in readings) for key in ("RssFile", "RssShmem")}
    resident, freed = sums["RssAnon"] + sum(shared.values()), sums["VmHWM"] - sums["VmRSS"]
    data = sums["VmData"] + shared["RssShmem"]
    return {**sums, **shared, "VmRSS": resident, "VmHWM": resident + freed, "VmData": data}


def search_largest(estimated: int, fits: Callable[[int], bool], tries: int) -> None:
    """Tries the estimated batch, then others up and down until the largest is known, at most ``tries``."""
    low, high, size = 0, math.inf, max(1, estimated)
    step = max(1, size // _STEPS)
    for _ in range(tries):
        low, high = (size, high) if fits(size) else (low, size)
        if high - low <= max(1, low // _CLOSE):
            return
        if high < math.inf and low:
            size = (low + int(high)) // 2
        else:
            size, step = max(1, size + (step if low else -step)), 4 * step


@dataclass(frozen=True, slots=True, eq=False)
class MemoryMeasurement:
    """Readings of fresh processes, in the order in which they ran, and the options that were given.

    ValueError if a process that predicted lacks a reading.
    """

    kind: ClassVar[str] = "memory"

    points: list[Point]
    limit_bytes: int
    elapsed_ns: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        loaded = _FIELDS | ({"DeviceUsed"} | _DEVICE_FIELDS if self.on_device else set())
        wanted = {**dict.fromkeys(_STAGES[:2], _FIELDS), **dict.fromkeys(_STAGES[2:], loaded)}
        for readings in (each["readings"] for each in self.points if "batch" in each["readings"]):
            if not all(set(readings.get(stage, ())) >= fields for stage, fields in wanted.items()):
                raise ValueError("a process that predicted lacks a reading")

    @property
    def on_device(self) -> bool:
        """Whether the figures are those of a GPU."""
        return any("DeviceUsed" in each["readings"].get("baseline", ()) for each in self.points)

    @staticmethod
    def device_bytes(readings: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
        """Returns the figures of a process on a GPU; ``framework`` is outside of the tensors' allocator.

        NVML tells the process's memory or, if not, by how much the whole GPU's has grown. ``peak`` is that of
        tensors: PyTorch frees what it reserves beyond them, which is in ``data``, before it runs out.
        """
        model, last = readings["model"], readings["batch"]
        used = last.get("DeviceProcess", last["DeviceUsed"] - readings["baseline"]["DeviceUsed"])
        outside = used - last["DeviceReserved"]
        return {
            "framework": outside,
            "model": model["DeviceAllocated"],
            "batch": last["DeviceAllocatedPeak"] - model["DeviceAllocated"],
            "peak": outside + last["DeviceAllocatedPeak"],
            "load_peak": outside + model["DeviceAllocatedPeak"],
            "data": outside + last["DeviceReservedPeak"],
        }

    @property
    def outside_bytes(self) -> int:
        """The most that a process had on a GPU outside the tensors' allocator; 0 on a CPU."""
        done = [each["readings"] for each in self.points if self.on_device and "batch" in each["readings"]]
        return max((self.device_bytes(each)["framework"] for each in done), default=0)

    @property
    def batch_size(self) -> int:
        """The largest batch size that predicted."""
        return max((each["batch_size"] for each in self.points if "batch" in each["readings"]), default=1)

    @property
    def instances(self) -> int:
        """The number of instances of the model."""
        return int(self.options.get("instances", 1))

    @property
    def lengths(self) -> Sequence[int]:
        """The sequence lengths, in order."""
        return list(dict.fromkeys(each["sequence_length"] for each in self.points))

    def line(self, length: int, left_out: int = 0) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Returns two batch sizes, each with its data in bytes, whose line estimates the largest batch.

        They are the largest measured size and the next smaller one that takes less, because small batches
        reuse memory from loading, and allocators take memory in blocks. None if there are no two. On a GPU,
        it is the data of ``device_bytes``, with what the allocator reserves beyond the tensors. That many of
        the largest measured sizes are ``left_out``.
        """
        measured = {
            each["batch_size"]: self.device_bytes(of)["data"] if self.on_device else data_bytes(of["batch"])
            for each in self.points
            if each["sequence_length"] == length
            and not each["limited"]
            and "batch" in (of := each["readings"])
        }
        sizes = sorted(measured.items())[: len(measured) - left_out]
        last = max(sizes, default=(0, 0))
        less = [point for point in sizes if point[1] < last[1]]
        return (max(less), last) if less else None

    def estimated(self, length: int, left_out: int = 0) -> int | None:
        """Returns the largest batch that fits according to the line; None without a line. See ``line``."""
        if (line := self.line(length, left_out)) is None:
            return None
        (less, below), (size, data) = line
        return max(0, size + (self.limit_bytes - data) * (size - less) // (data - below))

    def capacity(self, length: int) -> dict[str, float | None]:
        """Returns the largest batch at a sequence length, as columns of the report.

        ``estimated_batch`` is that of the line, and ``model_error_percent`` by how much it would be off if it
        were that of the line without the largest measured size. ``largest_batch`` is the largest that was
        tried and fit: 0 if a batch of 1 did not, None if it is not known. ``error_percent`` is by how much
        the estimate is off.
        """
        tried = [each for each in self.points if each["sequence_length"] == length and each["limited"]]
        failed = [each["batch_size"] for each in tried if each["failure"]]
        fit = [each["batch_size"] for each in tried if not each["failure"]]
        largest, estimated = max(fit, default=0 if 1 in failed else None), self.estimated(length)
        before, changed, error = self.estimated(length, left_out=1), None, None
        if estimated and before is not None:
            changed = 100 * (before - estimated) / estimated
        if estimated is not None and largest and failed:
            error = 100 * (estimated - largest) / largest
        return {
            "estimated_batch": estimated,
            "model_error_percent": changed,
            "largest_batch": largest,
            "error_percent": error,
        }
