"""The names of a model's inputs in a manifest, and those that a framework found in the model."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.manifests.errors import ArtifactError, suggestion
from inferometer.manifests.inputs import TensorSpec
from inferometer.manifests.original import FIRST_INPUT, is_numbered_layer


def number_of(name: str) -> int | None:
    """Returns the number that stands for a name in a manifest, such as 1 for ``#1``; None for other names."""
    if is_numbered_layer(name):
        return int(name[1:])
    return 0 if name == FIRST_INPUT else None


def has_numbers(tensors: Sequence[TensorSpec]) -> bool:
    """Returns whether a manifest numbers its inputs; ``data`` alone is a name as well."""
    return any(is_numbered_layer(each.name) for each in tensors)


def found_names(where: object, tensors: Sequence[TensorSpec], found: Sequence[str]) -> dict[str, str]:
    """Returns the name in the model of each of a manifest's inputs, which may be numbered.

    Args:
        where: The beginning of messages.
        tensors: The inputs of the manifest.
        found: The names of all inputs of the model, in its order.

    Raises:
        ArtifactError: The names differ.
    """
    numbered, known = has_numbers(tensors), set(found)
    names = {}
    for tensor in tensors:
        number = number_of(tensor.name)
        if tensor.name not in known and numbered and number is not None and number < len(found):
            names[tensor.name] = found[number]
        else:
            names[tensor.name] = tensor.name
    taken = set(names.values())
    for wanted, name in names.items():
        if name not in known:
            several = f"it has {len(found)}: {', '.join(found)}"
            advice = suggestion(wanted, found) if len(tensors) > 1 or len(found) == 1 else several
            single = "single " if len(tensors) == 1 else ""
            raise ArtifactError(f'{where}: has no {single}input "{wanted}"; {advice}')
    for name in found:
        if name not in taken:
            several = ", ".join(found)
            if len(tensors) == 1:
                raise ArtifactError(
                    f'{where}: has no single input "{tensors[0].name}"; it has {len(found)}: {several}'
                )
            raise ArtifactError(f'{where}: has the input "{name}", which the manifest lacks')
    return names
