"""The options of a load as texts and values, of a workload and of a search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from typing import Any

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs import defaults
from inferometer.evaluators.jobs.declaring import options_of
from inferometer.evaluators.kinds.load.measurement import LoadOptions
from inferometer.evaluators.kinds.load.request import LoadRequest
from inferometer.evaluators.kinds.words import dataset_words, words_of


def option_values(kind: str, options: LoadOptions) -> dict[str, Any]:
    """Returns the options as values of JSON."""
    given = {each.name: getattr(options, each.name) for each in fields(options)}
    given |= given.pop("further")
    return {"kind": kind} | {n: v.value if isinstance(v, Enum) else v for n, v in given.items()}


def option_conditions(options: LoadOptions) -> dict[str, str]:
    """Returns the options as the conditions of a comparison."""
    conditions = {
        "max batch size": str(options.max_batch_size),
        "max queue delay": f"{options.max_queue_delay_ms:g} ms",
        "preprocessing": "under load" if options.include_preprocess else "before",
        "timeout": f"{options.timeout_ms:g} ms",
    }
    if options.concurrency is not None:
        conditions["concurrency"] = str(options.concurrency)
    return conditions | {name.replace("_", " "): str(value) for name, value in options.further.items()}


def load_description(evaluation: Evaluation, options: LoadOptions) -> Iterator[tuple[str, str]]:
    """Yields the inputs as rows of text."""
    dataset = evaluation.dataset
    prepared = "preprocessed under load" if options.include_preprocess else "preprocessed before"
    yield "inputs", f"{dataset.name}, {dataset.size} of them, {prepared}"
    if dataset.chosen_samples is not None:
        yield "samples", dataset.chosen_samples


def options_text(options: LoadOptions, *, bound: bool = False) -> Iterator[str]:
    """Yields the options in a few words each; with ``bound`` also that of the latency."""
    yield f"timeout {options.timeout_ms:g} ms"
    if bound:
        yield known_text("bound", options.latency_bound_ms, "ms") or "no bound"
    yield f"batches of up to {options.max_batch_size}"
    if options.max_queue_delay_ms:
        yield f"which wait {options.max_queue_delay_ms:g} ms"
    yield f"{options.warm_up_queries} queries to warm up"


def further_words(request: type[LoadRequest], options: LoadOptions) -> Iterator[str]:
    """Yields the words of the options that have no field of ``LoadOptions``."""
    for each in options_of(request):
        yield from each.words(options.further.get(each.name))


def known_text(name: str, value: float | None, unit: str) -> str:
    """Returns an option with its unit; empty for one that was left out."""
    return "" if value is None else f"{name} {value:g} {unit}"


def load_words(evaluation: Evaluation, options: LoadOptions) -> Iterator[str]:
    """Yields the words of the command that repeats a load."""
    yield from dataset_words(evaluation)
    yield from words_of("seed", options.seed, 0)
    yield from words_of("percentile", options.percentile, defaults.PERCENTILE)
    yield from words_of("timeout_ms", options.timeout_ms, defaults.QUERY_TIMEOUT_MS)
    yield from words_of("warmup", options.warm_up_queries, defaults.WARM_UP_QUERIES)
    yield from words_of("max_batch_size", options.max_batch_size, 1)
    yield from words_of("max_queue_delay_ms", options.max_queue_delay_ms, 0.0)
    if options.include_preprocess:
        yield "--include_preprocess"
