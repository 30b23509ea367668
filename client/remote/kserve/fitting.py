"""Checks that a server's model matches a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferometer.agent.protocol.v2_datatypes import BATCH_SIDE, DATATYPES, TensorSignature, inputs_of
from inferometer.client.remote.kserve.messages import ServedInput
from inferometer.manifests.errors import ConfigurationError, suggestion
from inferometer.manifests.schema import ModelManifest
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2 import model_config_pb2

TensorMetadata = pb.ModelMetadataResponse.TensorMetadata


@dataclass(frozen=True, slots=True)
class Fit:
    """The server's names for the inputs and outputs of a manifest, and its batch limits.

    Attributes:
        inputs: The inputs, in the manifest's order.
        output_names: The outputs to request; none means all.
        output_layer: What the manifest's ``probabilities_layer`` is at the server.
        fewest: The fewest inputs that a request may have.
        most: The most; None if the server does not say.
    """

    inputs: tuple[ServedInput, ...]
    output_names: tuple[str, ...]
    output_layer: str | int
    fewest: int = 1
    most: int | None = None

    def check_batch(self, size: int, where: str) -> None:
        """Refuses a batch of a size that the server does not take.

        Raises:
            ConfigurationError: It has too many inputs, or too few.
        """
        if self.most is not None and size > self.most:
            raise ConfigurationError(
                f"{where}: takes at most {self.most} inputs in a request, and this batch has {size}; "
                f"use --batch_size={self.most}"
            )
        if size < self.fewest:
            raise ConfigurationError(
                f"{where}: takes {self.fewest} inputs in a request, no more and no fewer, and this batch has "
                f"{size}; use --batch_size={self.fewest}, and as many inputs as fill the batches"
            )


def fit(
    manifest: ModelManifest,
    metadata: pb.ModelMetadataResponse,
    config: model_config_pb2.ModelConfig | None,
    where: str,
) -> Fit:
    """Compares what a server reports about its model with a manifest.

    A server with one input gets it by the server's own name, whatever the manifest calls it; the same holds
    for the output. Several inputs have the same names here and there. What the server does not report is
    assumed to be as in the manifest, which has its labels. ``where`` names the server and the model in
    errors.

    Raises:
        ConfigurationError: They do not fit; the message names the first difference.
    """
    inputs, first_side = _fit_inputs(manifest, list(metadata.inputs), where)
    layer, names = _fit_output(manifest, list(metadata.outputs), where)
    if first_side > 0:
        return Fit(inputs, names, layer, first_side, first_side)
    limit = config.max_batch_size if config is not None else 0
    return Fit(inputs, names, layer, most=limit if limit > 0 else None)


def _fit_inputs(
    manifest: ModelManifest, found: Sequence[TensorMetadata], where: str
) -> tuple[tuple[ServedInput, ...], int]:
    """Returns the inputs at the server, and the size of their first axis, the batch."""
    described = f"the manifest of {manifest.name} {manifest.version}"
    wanted = list(inputs_of(manifest).values())
    if not found:
        return tuple(ServedInput(each.name, each.name, each.datatype) for each in wanted), BATCH_SIDE
    if len(found) != len(wanted):
        names = ", ".join(f'"{each.name}"' for each in found)
        has = "one" if len(wanted) == 1 else ", ".join(f'"{each.name}"' for each in wanted)
        count = f"{len(found)} input{'' if len(found) == 1 else 's'}"
        raise ConfigurationError(f"{where}: takes {count}, {names}; {described} has {has}")
    by_name = {each.name: each for each in found}
    if len(wanted) == 1:
        by_name = {wanted[0].name: found[0]}
    inputs, sides = [], set()
    for each in wanted:
        if each.name not in by_name:
            raise ConfigurationError(
                f'{where}: has no input "{each.name}", which {described} has; '
                f"{suggestion(each.name, by_name)}"
            )
        inputs.append(ServedInput(each.name, by_name[each.name].name, each.datatype))
        sides.add(_batch_side(each, by_name[each.name], described, where))
    fixed = sorted(sides - {BATCH_SIDE})
    if len(fixed) > 1:
        raise ConfigurationError(f"{where}: takes batches of {fixed} in its inputs, which is no one batch")
    return tuple(inputs), fixed[0] if fixed else BATCH_SIDE


def _batch_side(wanted: TensorSignature, found: TensorMetadata, described: str, where: str) -> int:
    """Returns the size of an input's first axis at the server, if the rest is as in the manifest."""
    what = f'{where}: input "{found.name}"'
    if found.datatype != wanted.datatype.name:
        raise ConfigurationError(
            f"{what}: is {found.datatype} at the server, and {wanted.datatype.name} in {described}"
        )
    shape = tuple(found.shape)
    if len(shape) != len(wanted.shape) or not _same_sides(shape[1:], wanted.dimensions) or not shape[0]:
        raise ConfigurationError(
            f"{what}: has shape {list(shape)} at the server, and {list(wanted.shape)} in {described}"
        )
    return shape[0]


def _fit_output(
    manifest: ModelManifest, outputs: Sequence[TensorMetadata], where: str
) -> tuple[str | int, tuple[str, ...]]:
    """Returns the name of the output with the scores, and the outputs to request; none requests all.

    Those of other tasks than classification are checked by their postprocessing.
    """
    layer = manifest.output.parameters.probabilities_layer
    if not outputs or manifest.output.type != "classification":
        return layer, ()
    found = _find_output(layer, outputs, where)
    what = f'{where}: output "{found.name}"'
    if found.datatype not in DATATYPES:
        raise ConfigurationError(f"{what}: is {found.datatype} at the server; scores are numbers")
    shape, labels = tuple(found.shape), manifest.output.parameters.labels
    classes = len(labels) or BATCH_SIDE
    if len(shape) < 2 or not _same_sides(shape[1:], (classes, *[1] * (len(shape) - 2))):
        shown = [BATCH_SIDE, classes]
        raise ConfigurationError(
            f"{what}: has shape {list(shape)} at the server; the manifest of {manifest.name} "
            f"{manifest.version} describes scores of shape {shown}"
        )
    return found.name, (found.name,)


def _find_output(layer: str | int, outputs: Sequence[TensorMetadata], where: str) -> TensorMetadata:
    by_name = {output.name: output for output in outputs}
    if isinstance(layer, int):
        if not 0 <= layer < len(outputs):
            raise ConfigurationError(
                f"{where}: has no output number {layer}, which the manifest names; it has {len(outputs)}"
            )
        return outputs[layer]
    if layer in by_name:
        return by_name[layer]
    if len(outputs) == 1:
        return outputs[0]
    raise ConfigurationError(
        f'{where}: has no output "{layer}", which the manifest names; {suggestion(layer, by_name)}'
    )


def _same_sides(found: Sequence[int], wanted: Sequence[int]) -> bool:
    """Returns whether two shapes may be the same; -1 is any size."""
    return len(found) == len(wanted) and all(
        BATCH_SIDE in {one, other} or one == other for one, other in zip(found, wanted, strict=True)
    )
