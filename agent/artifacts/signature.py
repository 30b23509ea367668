"""The signature of a model that no manifest describes: its inputs, as its file or its object states them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class InputSignature:
    """One input of a model.

    Attributes:
        name: Its name.
        element_type: NumPy's name of its dtype; None if the model does not state it.
        shape: Its sizes, the batch first, with None for a size that is left open; None if the model does not
            even state their number.
    """

    name: str
    element_type: str | None = None
    shape: tuple[int | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """The inputs of a model, and what else a record of it needs.

    Attributes:
        inputs: The inputs, without weights.
        graph: The file of the graph; None for a model in memory.
        weights: The file of the weights; None if the graph's file contains them.
        notes: What a person should know about the format, one line each.
        attributes: What identifies a model in memory, such as its class.
        checksums: Checksums of a model in memory, such as that of its parameters.
    """

    inputs: tuple[InputSignature, ...]
    graph: Path | None = None
    weights: Path | None = None
    notes: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)
