"""Evaluations of every kind for the page, one of which tries to be markup wherever it holds a text."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np

from inferometer.evaluators.conditions.conditions import Conditions, Stability
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.store.opening import open_store
from tests.evaluations import changed
from tests.reports.conftest import batch_times, on_cpu, on_gpu, without_a_full_batch
from tests.reports.loads import calm, overloaded, searched
from tests.reports.pictures import traced

DATABASE = "inferometer"
SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(1)>"
BEGIN = datetime(2026, 5, 1, 12, 0, tzinfo=timezone.utc)


def numbered(evaluation: Evaluation, number: int) -> Evaluation:
    """The evaluation with an id and a time of its own; later numbers are newer."""
    return replace(
        evaluation,
        id=str(uuid.UUID(int=number << 96, version=4)),
        created_at=BEGIN + timedelta(minutes=number),
        group_id=None,
    )


def steady(number: int, scale: float = 1.0, batches: int = 120) -> Evaluation:
    """Enough batches for every interval, of about a millisecond times ``scale``."""
    times = np.random.default_rng(number).gamma(400, 2500 * scale, batches).astype(int)
    base = on_cpu()
    return numbered(
        changed(
            base, times=batch_times([16] * batches, times.tolist()), conditions=Conditions(Stability.STABLE)
        ),
        number,
    )


def hostile(number: int) -> Evaluation:
    """Markup in each text that a user, a model or a machine may name."""
    base = steady(number)
    system = base.system
    manifest = system.manifest.model_copy(update={"name": SCRIPT, "description": f"{IMAGE}</script>"})
    environment = replace(
        system.environment, hostname=IMAGE, cpu_model=f'"{IMAGE}', build="</script>" + IMAGE
    )
    return replace(
        base,
        system=replace(system, manifest=manifest, environment=environment, checksums={IMAGE: SCRIPT}),
        dataset=replace(base.dataset, name=f"/data/{IMAGE}", version=None),
        conditions=Conditions(Stability.DISTURBED, (f"{IMAGE} took the CPU",), SCRIPT),
    )


def samples() -> list[Evaluation]:
    """The newest last."""
    return [
        steady(1),
        steady(2, 1.4),
        hostile(3),
        numbered(traced(steady(4), "<b>layer</b>"), 4),
        numbered(calm(steady(5)), 5),
        numbered(overloaded(steady(6)), 6),
        numbered(searched(steady(7)), 7),
        numbered(on_gpu(), 8),
        numbered(without_a_full_batch(), 9),
    ]


def keep(folder: Path, evaluations: Sequence[Evaluation]) -> None:
    """Saves evaluations to the local file of a data directory."""
    with closing(open_store(None, DATABASE, folder)) as store:
        for evaluation in evaluations:
            store.save(evaluation)


def by_number(evaluations: Sequence[Evaluation]) -> Iterator[tuple[int, Evaluation]]:
    """The evaluations with the numbers that they were given."""
    return ((uuid.UUID(each.id).int >> 96, each) for each in evaluations)
