"""The signature of a model without a manifest: its inputs, as its file or its object states them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferometer.manifests.errors import ConfigurationError
from inferometer.manifests.original import FIRST_INPUT


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


def inputs_of_examples(
    model: str,
    examples: Sequence[InputSignature],
    float_type: str = "float32",
    arguments: Sequence[str] = (),
) -> tuple[InputSignature, ...]:
    """Returns the inputs of a model in memory that does not state them, from examples.

    Args:
        model: The name of the model in messages.
        examples: The tensors of a batch.
        float_type: The dtype of the tensors that are floats.
        arguments: The names of the model's arguments, for several examples without names.

    Raises:
        ConfigurationError: There are no examples.
    """
    if not examples:
        raise ConfigurationError(f"{model} does not tell its input; give inputs, an array of samples")
    inputs = []
    for place, example in enumerate(examples):
        element_type = example.element_type or float_type
        if element_type.startswith("float"):
            element_type = float_type
        name = FIRST_INPUT
        if len(examples) > 1:
            name = arguments[place] if len(arguments) >= len(examples) else f"input{place}"
        inputs.append(InputSignature(example.name or name, element_type, example.shape))
    return tuple(inputs)


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """The inputs of a model, and further data for a record of it.

    Attributes:
        inputs: The inputs, without weights.
        graph: The file of the graph; None for a model in memory.
        weights: The file of the weights; None if the graph's file contains them.
        notes: Notes on the format for people, one line each.
        attributes: Attributes that identify a model in memory, such as its class.
        checksums: Checksums of a model in memory, such as that of its parameters.
    """

    inputs: tuple[InputSignature, ...]
    graph: Path | None = None
    weights: Path | None = None
    notes: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)
