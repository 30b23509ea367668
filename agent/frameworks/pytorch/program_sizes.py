"""The bounds of an exported program's open sizes, which the file states as plain numbers.

A size is a symbol such as ``s27``, whose range ``range_constraints`` has, or an expression of some. Those are
not evaluated: the size that the program was exported with is the only one of theirs that is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferometer.agent.artifacts.torch_archives import open_archive
from inferometer.manifests.tensor_specs import AxisSizes

_SYMBOL = re.compile(r"Symbol\('(\w{1,40})'[\w=, ]*\)|(\w{1,40})", re.ASCII)
_LARGEST = 2**31 - 1


def read_program_sizes(path: Path) -> dict[str, tuple[AxisSizes | None, ...]]:
    """Returns the sizes of each input's axes by its name in the graph, the batch first; None for a fixed one.

    Raises:
        ArtifactError: It is no exported program, or a bound of it is no whole number.
    """
    with open_archive(path, "exported program") as archive:
        program = archive.json("models/model.json")
        graph, ranges = program["graph_module"]["graph"], program.get("range_constraints") or {}
        found = {}
        for spec in program["graph_module"]["signature"]["input_specs"]:
            if "user_input" in spec:
                name = spec["user_input"]["arg"]["as_tensor"]["name"]
                found[name] = tuple(_axis(size, ranges) for size in graph["tensor_values"][name]["sizes"])
    return found


def _axis(size: Mapping[str, Any], ranges: Mapping[str, Any]) -> AxisSizes | None:
    if "as_int" in size:
        return None
    expression = size["as_expr"]
    match = _SYMBOL.fullmatch(expression["expr_str"])
    bounds = ranges.get(match[1] or match[2]) if match else None
    if bounds is not None:
        return AxisSizes(max(1, _whole(bounds["min_val"]) or 0), _whole(bounds["max_val"]))
    hint = _whole((expression.get("hint") or {}).get("as_int"))
    return AxisSizes(example=hint) if hint else None


def _whole(number: object) -> int | None:
    """A bound; None for none, and for one that no size reaches."""
    if number is None:
        return None
    if type(number) is not int:
        raise ValueError("a bound of it is no whole number")
    return number if 0 <= number <= _LARGEST else None
