"""Checks that a model of a server is the one that a manifest describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferometer.agent.protocol.v2_datatypes import BATCH_SIDE, DATATYPES, TensorSignature, input_of
from inferometer.manifests.errors import ConfigurationError, suggestion
from inferometer.manifests.schema import ModelManifest
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2 import model_config_pb2

TensorMetadata = pb.ModelMetadataResponse.TensorMetadata


@dataclass(frozen=True, slots=True)
class Fit:
    """What a server calls the input and the output that a manifest describes.

    Attributes:
        input_name: The input.
        output_names: The outputs to request; none means all.
        output_layer: What the manifest's ``probabilities_layer`` is at the server.
        fewest: The fewest inputs that a request may have.
        most: The most; None if the server does not say.
    """

    input_name: str
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
    for the output. What the server does not report is assumed to be as in the manifest, which has its labels.
    ``where`` names the server and the model in errors.

    Raises:
        ConfigurationError: They do not fit; the message names the first difference.
    """
    wanted = input_of(manifest)
    name, first_side = _fit_input(wanted, list(metadata.inputs), manifest, where)
    layer, names = _fit_output(manifest, list(metadata.outputs), where)
    if first_side > 0:
        return Fit(name, names, layer, first_side, first_side)
    limit = config.max_batch_size if config is not None else 0
    return Fit(name, names, layer, most=limit if limit > 0 else None)


def _fit_input(
    wanted: TensorSignature, inputs: Sequence[TensorMetadata], manifest: ModelManifest, where: str
) -> tuple[str, int]:
    """The input's name at the server, and the size of its first axis, the batch."""
    described = f"the manifest of {manifest.name} {manifest.version}"
    if not inputs:
        return wanted.name, BATCH_SIDE
    if len(inputs) > 1:
        names = ", ".join(f'"{found.name}"' for found in inputs)
        raise ConfigurationError(f"{where}: takes {len(inputs)} inputs, {names}; {described} has one")
    [found] = inputs
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
    return found.name, shape[0]


def _fit_output(
    manifest: ModelManifest, outputs: Sequence[TensorMetadata], where: str
) -> tuple[str | int, tuple[str, ...]]:
    """The name of the output with the scores, and the outputs to request; none requests all.

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
    """Whether two shapes may be the same; -1 is any size."""
    return len(found) == len(wanted) and all(
        BATCH_SIDE in {one, other} or one == other for one, other in zip(found, wanted, strict=True)
    )
