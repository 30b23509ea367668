"""The verdict on the conditions of a measurement, and the observations behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.conditions.host import LEAST_S, HostConditions
from inferometer.evaluators.conditions.times import LEAST_BATCHES, instabilities


class Stability(str, Enum):
    """The verdict."""

    STABLE = "stable"
    """No observed disturbance, and the times are stable."""
    DISTURBED = "disturbed"
    """Something other than the measured program used the machine."""
    UNSTABLE = "unstable"
    """The times are not stable, and no observed disturbance explains it."""
    UNKNOWN = "not known"
    """The host is not watched, or the measurement was too short."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a measurement.

    Attributes:
        stability: The verdict.
        reasons: Why it is not stable, each with its figure.
        note: What the verdict does not take into account; empty for nothing.
        hosts: What was observed on each host of the model; empty if none is watched.
    """

    stability: Stability
    reasons: tuple[str, ...] = ()
    note: str = ""
    hosts: tuple[HostConditions, ...] = ()

    def __str__(self) -> str:
        reasons = f": {'; '.join(self.reasons)}" if self.reasons else ""
        note = f" ({self.note})" if self.note else ""
        return f"{self.stability.value}{reasons}{note}"

    @property
    def verdict(self) -> str:
        """The verdict in a word or two: ``stable``, ``disturbed``, ``unstable`` or ``not known``."""
        return self.stability.value

    @property
    def warning(self) -> str:
        """The verdict in one line if it makes the figures untrustworthy; empty otherwise."""
        suspect = self.stability in (Stability.DISTURBED, Stability.UNSTABLE)
        return str(self) if suspect else ""


NOT_WATCHED = "the server's host is not watched"
_TOO_FEW = f"by the counters only: fewer than {LEAST_BATCHES} full batches do not tell"


def judged(
    hosts: Sequence[HostConditions], times_ns: NDArray[np.int64] | None = None, round_size: int = 1
) -> Conditions:
    """Returns the verdict; of several hosts, it is that of the worst one.

    Args:
        hosts: The conditions on each host of the model; empty if none is watched.
        times_ns: int64; the times of equal batches in order; None if they may vary, as under load.
        round_size: The batches whose inputs are prepared together; see ``instabilities``.
    """
    several = len(hosts) > 1
    disturbances = tuple(
        f"{host.hostname}: {found}" if several else found for host in hosts for found in host.disturbances()
    )
    times = _judged_times(times_ns, round_size)
    hosts = tuple(hosts)
    if disturbances:
        return Conditions(Stability.DISTURBED, (*disturbances, *(times or ())), "", hosts)
    if times:
        return Conditions(Stability.UNSTABLE, times, "", hosts)
    if not hosts:
        return Conditions(Stability.UNKNOWN, (NOT_WATCHED,))
    if unknown := next((host for host in hosts if not host.is_known), None):
        return Conditions(Stability.UNKNOWN, (_why_unknown(unknown),), "", hosts)
    judged_times = times_ns is None or times is not None
    return Conditions(Stability.STABLE, (), "" if judged_times else _TOO_FEW, hosts)


def _judged_times(times_ns: NDArray[np.int64] | None, round_size: int) -> tuple[str, ...] | None:
    """Returns why the times are unstable; empty if they are stable, None if there are too few to judge."""
    if times_ns is None or len(times_ns) < LEAST_BATCHES:
        return None
    return instabilities(times_ns, round_size)


def _why_unknown(host: HostConditions) -> str:
    if host.processors is None:
        return "this system does not tell what its processors do"
    return f"measured for {host.duration_s:.2g} s, and the counters need {LEAST_S:g} s"
