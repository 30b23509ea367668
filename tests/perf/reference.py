"""The p50 of ``predict dataset`` beside that of ``torch.utils.benchmark``, for the same ResNet50."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain

import numpy as np

from inferometer.agent.hardware.environment import Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import Session, SessionOptions, open_session, select_model
from inferometer.agent.preprocessing.inputs import Tensor
from inferometer.evaluators.conditions.conditions import Stability, Watch
from inferometer.evaluators.datasets.base import DatasetIdentity, Sample
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.manifests.catalog import Catalog
from tests.perf.dataset_overhead import RepeatedDataset
from tests.perf.ratios import Row, divided, interleaved
from tests.perf.resnet50 import BARE

ROUNDS = 10
SLICES = 8
BATCHES = 5
"""Batches of a slice. Within a round the sides take turns slice by slice: shared machines change their speed
from one second to the next, which must reach all sides alike."""
WARM_UP = 3
"""Batches that bring the weights back into the caches; ``blocked_autorange`` runs some before it measures."""
_MOST_ROUNDS = 40


def measure() -> list[Row]:
    """Measures by turns, and again where the conditions of a round were disturbed."""
    from torch.utils.benchmark import Timer

    registry = Registry()
    manifest = select_model(Catalog(), registry, "ResNet50", framework="PyTorch", weights=Weights.RANDOM)
    array = np.random.default_rng(0).standard_normal((3, 224, 224), np.float32)
    with ExitStack() as stack:
        options = SessionOptions(weights=Weights.RANDOM)
        session = stack.enter_context(open_session(manifest, options, registry))
        timer = Timer(
            "predict(batch)",
            globals={"predict": BARE["PyTorch"](stack), "batch": array[None]},
            num_threads=session.description.threads or 1,
        )
        seconds = sum(_times_of_dataset(session, array))

        def theirs() -> Sequence[float]:
            return timer.blocked_autorange(min_run_time=seconds).times

        turns = {"ours": lambda: _times_of_dataset(session, array), "theirs": theirs, "again": theirs}
        taken, disturbed = _undisturbed_rounds(session, turns)
    detail = f"{1e3 * statistics.median(taken['theirs']):.2f} ms; {disturbed} disturbed rounds were repeated"
    return [
        Row(
            "predict dataset / blocked_autorange: p50",
            divided(taken["ours"], taken["theirs"]),
            "0.99 – 1.01",
            detail,
        ),
        Row("blocked_autorange / itself: p50 (A/A)", divided(taken["again"], taken["theirs"])),
    ]


def _undisturbed_rounds(
    session: Session, turns: Mapping[str, Callable[[], Sequence[float]]]
) -> tuple[Mapping[str, list[float]], int]:
    """The p50 in seconds of each round that no other work disturbed, and how many rounds were."""
    taken: dict[str, list[float]] = {name: [] for name in turns}
    disturbed = 0
    for _ in range(_MOST_ROUNDS):
        with Watch(session.description) as watch:
            watch.begin()
            slices = interleaved(SLICES, turns)
            stable = watch.end().stability is not Stability.DISTURBED
        disturbed += not stable
        for name in turns if stable else ():
            taken[name].append(statistics.median(chain.from_iterable(slices[name])))
        if len(taken["ours"]) == ROUNDS:
            break
    if not taken["ours"]:
        raise SystemExit(f"reference: other work disturbed all of {_MOST_ROUNDS} rounds; stop it")
    return taken, disturbed


def _times_of_dataset(
    session: Session, array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> Sequence[float]:
    """The predict times in seconds."""
    identity = DatasetIdentity("vision", "tensors", None, None, BATCHES)
    tensors = RepeatedDataset(identity, [Sample(str(n), Tensor(array)) for n in range(BATCHES)])
    evaluation = DatasetRun(session, tensors, BatchOptions(1, 1, warmup_num_file_parts=WARM_UP)).run()
    times_s: list[float] = (evaluation.measurement.times.predict_ns / 1e9).tolist()
    return times_s
