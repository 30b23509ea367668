"""The runs of one side together: their figures, and how these would vary if they were measured again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evaluators.comparing.figures import percent_of
from evaluators.comparing.run_times import RunTimes
from evaluators.loadgen.intervals import percentile_interval
from evaluators.loadgen.queries import NEVER_NS

RESAMPLES = 1000
BLOCKS = 20
"""Into how many a run is cut to be resampled."""
_SLICES = 4096
_ROUNDING = 1e-6
_NS_PER_S = 1_000_000_000


class PooledRuns:
    """The runs of one side: how many values of each block lie in which slice of all values in order.

    Args:
        runs: At least one.
        figures: Percentiles, or ``throughput``; in this order they are given.

    Attributes:
        runs: How many.
        values: How many values they have together.
    """

    def __init__(self, runs: Sequence[RunTimes], figures: Sequence[str]) -> None:
        self.runs = len(runs)
        self._percents = [percent_of(figure) for figure in figures]
        self._latency_ns = np.concatenate([run.latency_ns for run in runs])
        self.values = len(self._latency_ns)
        self._blocks: list[tuple[int, int]] = []
        blocks, first = [], 0
        for run in runs:
            count = min(BLOCKS, len(run.latency_ns))
            blocks.append(first + np.arange(len(run.latency_ns)) * count // len(run.latency_ns))
            self._blocks.append((first, count))
            first += count
        block = np.concatenate(blocks)
        elapsed_ns, inputs = (
            np.bincount(block, np.concatenate([getattr(run, name) for run in runs]), first)
            for name in ("elapsed_ns", "inputs")
        )
        self._elapsed_s = elapsed_ns / _NS_PER_S
        self._inputs = inputs
        slices = min(self.values, _SLICES)
        order = np.argsort(self._latency_ns, kind="stable")
        slice_of = np.arange(self.values) * slices // self.values
        self._counts = np.zeros((first, slices))
        np.add.at(self._counts, (block[order], slice_of), 1)
        last = np.flatnonzero(np.diff(slice_of, append=slices))
        ordered_ns = self._latency_ns[order][last]
        self._slices_ns = np.where(ordered_ns == NEVER_NS, np.inf, ordered_ns.astype(np.float64))

    def figures(self) -> NDArray[np.float64]:
        """float64, one value a figure: percentiles in nanoseconds, throughput in inputs a second."""
        with np.errstate(divide="ignore", invalid="ignore"):
            throughput = float(self._inputs.sum() / self._elapsed_s.sum())
        return np.asarray(
            [throughput if percent is None else self._percentile(percent) for percent in self._percents]
        )

    def _percentile(self, percent: float) -> float:
        return percentile_interval(self._latency_ns, percent).value_ns

    def resampled(self, random: np.random.RandomState) -> NDArray[np.float64]:
        """float64, resamples × figures."""
        weights = self._weights(random)
        up_to = np.cumsum(weights @ self._counts, axis=1)
        columns = []
        for percent in self._percents:
            if percent is None:
                with np.errstate(divide="ignore", invalid="ignore"):
                    columns.append((weights @ self._inputs) / (weights @ self._elapsed_s))
            else:
                wanted = percent / 100 * up_to[:, -1:] - _ROUNDING
                columns.append(self._slices_ns[np.argmax(up_to >= wanted, axis=1)])
        return np.stack(columns, axis=1)

    def _weights(self, random: np.random.RandomState) -> NDArray[np.float64]:
        """How often each resample holds each block: float64, resamples × blocks."""
        firsts, counts = np.asarray(self._blocks).T
        runs = random.randint(0, self.runs, (RESAMPLES, self.runs))
        drawn = random.random_sample((RESAMPLES, self.runs, BLOCKS))
        count = counts[runs][:, :, None]
        blocks = firsts[runs][:, :, None] + (drawn * count).astype(np.int64)
        there = np.broadcast_to(np.arange(BLOCKS) < count, blocks.shape)
        rows = np.arange(RESAMPLES)[:, None, None] * len(self._counts)
        cells = np.bincount((rows + blocks)[there], minlength=RESAMPLES * len(self._counts))
        weights: NDArray[np.float64] = cells.reshape(RESAMPLES, -1).astype(np.float64)
        return weights
