"""The two output formats of opperf, MXNet's benchmark of operators, made from the rows of ``OpperfReport``.

Keys, headings, their order and the missing line end are those of ``save_to_file`` in
``benchmark/opperf/utils/common_utils.py`` of MXNet (commit b84609d), for programs that read opperf's files.
A list holds all rows of an operator; in opperf, the last of several variants replaces the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

_KEYS = {
    "native": {
        "max_storage_mem_alloc_": "memory_kb",
        "avg_time_forward_": "forward_ms",
        "avg_time_backward_": "backward_ms",
    },
    "python": {"avg_time_": "mean_ms", "p50_time_": "p50_ms", "p90_time_": "p90_ms", "p99_time_": "p99_ms"},
}
"""The prefixes of the keys, to which the device or the operator is appended, and the keys of the row."""
_HEADINGS = {
    "native": "Operator | Inputs | Max Mem Usage (Storage) (Bytes) | Avg Forward Time (ms) "
    "| Avg. Backward Time (ms)",
    "python": "Operator | Avg Time (ms) | P50 Time (ms) | P90 Time (ms) | P99 Time (ms) | Inputs",
}
_DECIMALS = 4  # of what MXNet's profiler prints
_FEATURE = re.compile(r"([✔✖]) (\w+)")
"""A feature of MXNet's build, as its description states it."""


def _figures(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns the figures by the prefixes of their keys; those of ``native`` are rounded as in opperf."""
    found = {start: row[key] for start, key in _KEYS[row["profiler"]].items()}
    if row["profiler"] == "python":
        return found
    return {start: None if value is None else round(value, _DECIMALS) for start, value in found.items()}


def _json_text(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yields ``{operator: [{inputs: {…}, figures}]}``; a figure that was not measured has no key."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: str(row["api"])):
        entry = {"inputs": json.loads(row["inputs_json"])}
        for start, value in _figures(row).items():
            if value is not None:
                entry[start + row["storage" if start.startswith("max") else "api"]] = value
        found.setdefault(row["api"], []).append(entry)
    yield json.dumps(found, indent=4)


def _markdown_text(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the features of MXNet's build, and a table for each profiler that the rows have."""
    lines: dict[str, list[str]] = {}
    builds = set()
    for row in sorted(rows, key=lambda row: str(row["api"])):
        builds.add(row["build"])
        cells = ["---" if value is None else str(value) for value in _figures(row).values()]
        cells.insert(0 if row["profiler"] == "native" else len(cells), row["inputs"])
        lines.setdefault(row["profiler"], []).append(f"| {' | '.join([row['api'], *cells])} |")
    parts = _feature_lines(builds.pop()) if len(builds) == 1 else []
    for profiler in sorted(lines) or ["native"]:
        heading = _HEADINGS[profiler]
        rule = "| :---: " * (heading.count("|") + 1)
        parts += ["# Benchmark Results", f"| {heading} |", f"{rule}|", *lines.get(profiler, ())]
    yield "\n".join(parts)


def _feature_lines(build: str) -> list[str]:
    """Returns opperf's list of MXNet's features, each with the number 0; empty for other builds."""
    found = sorted(_FEATURE.findall(build), key=itemgetter(1))
    lines = [f"0. {name} : {mark} {name}" for mark, name in found]
    return ["# Runtime Features", *lines] if lines else []


OPPERF_FORMATS = {"opperf-json": _json_text, "opperf-md": _markdown_text, "md": _markdown_text}
"""The formats by name; ``md`` is opperf's own name of the second."""
