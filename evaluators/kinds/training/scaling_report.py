"""Reports on scaling: how the time of a training step changes with the number of devices."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.training.measurement import TrainingMeasurement, TrainingSummary
from inferometer.evaluators.reports.base import (
    CONDITIONS_COLUMN,
    EVALUATION_COLUMNS,
    STATUS_COLUMN,
    Column,
    Report,
    Row,
    describe,
    in_ms,
)

_Trainings: TypeAlias = Sequence[Evaluation[TrainingMeasurement]]


class _ScalingReport(Report[TrainingMeasurement]):
    """One row for each training of a group that ran on different numbers of devices.

    The first number of devices of a group is its base: its mean step time, over its evaluations if there are
    several. Efficiency is cut to two decimals and capped at 100 %, as DLBS reports it; a column beside it has
    the value as it is. Groups with one number of devices only are left out.
    """

    takes = (TrainingMeasurement,)
    undisturbed = True
    columns = (
        *EVALUATION_COLUMNS,
        Column("devices", "devices", stays=True),
        Column("effective_batch", "effective batch", stays=True),
        Column("step_ms_mean", "step mean (ms)"),
        Column("throughput_samples_per_s", "throughput (samples/s)", decimals=1),
        Column("speedup", "speed-up", decimals=2),
        Column("efficiency_percent", "efficiency (%)", decimals=2, stays=True),
        Column("uncapped_efficiency_percent", "efficiency, uncapped (%)", decimals=4, detail=3),
        Column("communicate_ms", "communicate (ms)", detail=1),
        Column("communicate_percent", "communicate (%)", decimals=1, detail=1),
        Column("communication", "gradients by", detail=2),
        STATUS_COLUMN,
        CONDITIONS_COLUMN,
    )

    def rows(self, evaluations: _Trainings) -> Iterator[Row]:
        """Yields the evaluations of each group, by the number of their devices."""
        groups: dict[Hashable, list[Evaluation[TrainingMeasurement]]] = {}
        for evaluation in evaluations:
            if len(evaluation.measurement.full_ns):
                groups.setdefault((_alike(evaluation), self._kept(evaluation.measurement)), []).append(
                    evaluation
                )
        for group in groups.values():
            ordered = sorted(group, key=devices_of)
            first = devices_of(ordered[0])
            if first == devices_of(ordered[-1]):
                continue
            base_ns = float(np.mean([_mean_ns(each) for each in ordered if devices_of(each) == first]))
            yield from (self._row(each, base_ns, first) for each in ordered)

    def _row(self, evaluation: Evaluation[TrainingMeasurement], base_ns: float, first: int) -> Row:
        measured, summary = evaluation.measurement, TrainingSummary.of(evaluation.measurement)
        faster, more = base_ns / _mean_ns(evaluation), devices_of(evaluation) / first
        speedup = self._speedup(faster, more)
        efficiency_percent = 100 * speedup / more
        communicate, whole = summary.communicate_ns, summary.mean_ns
        return {
            **describe(evaluation),
            "devices": devices_of(evaluation),
            "effective_batch": measured.options.effective_batch,
            "step_ms_mean": in_ms(whole),
            "throughput_samples_per_s": summary.throughput_samples_per_s,
            "speedup": speedup,
            "efficiency_percent": cut_percent(efficiency_percent),
            "uncapped_efficiency_percent": efficiency_percent,
            "communicate_ms": in_ms(communicate),
            "communicate_percent": 100 * communicate / whole if communicate is not None and whole else None,
            "communication": measured.options.communication or None,
        }

    @abstractmethod
    def _kept(self, measured: TrainingMeasurement) -> int:
        """Returns the batch that stays the same in a group."""

    @abstractmethod
    def _speedup(self, faster: float, more: float) -> float:
        """Returns the speedup of ``more`` times the devices, whose steps are ``faster`` times as fast."""


class WeakScalingReport(_ScalingReport):
    """Weak scaling: each device keeps its batch, so that efficiency is t1 / tN."""

    name = "weak_scaling"
    summary = "training with the same batch per device on more devices: speed-up and efficiency"

    def _kept(self, measured: TrainingMeasurement) -> int:
        return measured.options.batch_size

    def _speedup(self, faster: float, more: float) -> float:
        return faster * more


class StrongScalingReport(_ScalingReport):
    """Strong scaling: the effective batch is divided among the devices; efficiency is t1 / (N · tN)."""

    name = "strong_scaling"
    summary = "training with the same effective batch on more devices: speed-up and efficiency"

    def _kept(self, measured: TrainingMeasurement) -> int:
        return measured.options.effective_batch

    def _speedup(self, faster: float, more: float) -> float:
        return faster


def devices_of(evaluation: Evaluation[TrainingMeasurement]) -> int:
    """Returns the devices of all ranks."""
    return evaluation.measurement.options.devices * evaluation.measurement.options.ranks


def cut_percent(percent: float) -> float:
    """Returns a percentage of at most 100, cut to two decimals: 90.909… is 90.9."""
    return min(100.0, math.floor(round(100 * percent, 6)) / 100)


def _mean_ns(evaluation: Evaluation[TrainingMeasurement]) -> float:
    return float(evaluation.measurement.full_ns.mean())


def _alike(evaluation: Evaluation[TrainingMeasurement]) -> Hashable:
    """Returns what the evaluations of a group have in common."""
    system, options, data = evaluation.system, evaluation.measurement.options, evaluation.measurement.data
    identity: Iterable[Hashable] = (
        system.manifest.name,
        system.manifest.version,
        system.manifest.framework.name,
        system.framework_version,
        system.device.kind,
        system.environment.cpu_model,
        tuple(gpu.name for gpu in system.environment.gpus[:1]),
        options.precision,
        options.optimizer,
        options.api,
        (data.backend, data.place),
        evaluation.dataset.name if data.backend != "synthetic" else "",
    )
    return tuple(identity)
