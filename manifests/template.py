"""The text of a manifest for a model's file, with comments that say what a person fills in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from inferometer.manifests.fields import DYNAMIC_AXIS
from inferometer.manifests.inputs import ColorMode, ElementType, ImageParameters, InputParameters
from inferometer.manifests.schema import ModelManifest

_WIDTH = 10_000


def manifest_text(
    manifest: ModelManifest,
    folder: Path,
    target: Path,
    checksums: Mapping[str, str],
    fixed_batch: int | None = None,
) -> str:
    """Returns the YAML of a manifest whose inputs were inferred from a file.

    Args:
        manifest: The manifest; its files are names in ``folder``.
        folder: The folder of the files.
        target: The folder of the manifest, which paths are relative to.
        checksums: The checksum of each file by its name.
        fixed_batch: The only batch size that the model takes; None for any.
    """
    return "\n".join(_lines(manifest, folder, target, checksums, fixed_batch)) + "\n"


def _lines(
    manifest: ModelManifest,
    folder: Path,
    target: Path,
    checksums: Mapping[str, str],
    fixed_batch: int | None,
) -> Iterator[str]:
    files = manifest.model
    yield f"name: {_scalar(manifest.name)}"
    yield 'version: "1.0"              # of the model; fill it in if there are several'
    yield "framework:"
    yield f"  name: {_scalar(manifest.framework.name)}"
    yield '  version: "*"              # the versions that it runs in, such as ">=1.17"'
    if fixed_batch:
        yield f"# the model takes batches of {fixed_batch} only: --batch_size={fixed_batch}"
    yield "inputs:"
    for model_input in manifest.inputs:
        parameters = model_input.parameters
        dynamic = f", {DYNAMIC_AXIS} for a dynamic axis" if DYNAMIC_AXIS in parameters.dimensions else ""
        yield f"  - type: {model_input.type}"
        yield "    parameters:"
        yield f"      dimensions: {list(parameters.dimensions)}   # without the batch{dynamic}"
        yield f"      element_type: {parameters.element_type.value}"
        yield f"      input_layer: {_scalar(parameters.input_layer)}"
        yield from (f"      {line}" for line in _preprocessing(parameters))
    yield "output:"
    yield "  type: raw                 # the output tensors unchanged, so that no accuracy is counted"
    yield "  # For a model that classifies, write this instead, with its labels in the order of its scores:"
    yield "  # type: classification"
    yield "  # parameters:"
    yield "  #   probabilities_layer: 0           # the output's index or name"
    yield "  #   probabilities_transform: softmax # none if the model does it"
    yield "  #   labels: [cat, dog]               # or features_url: labels.txt, one a line"
    yield "model:"
    for field, name in (("graph", files.graph_path), ("weights", files.weights_path)):
        if name is not None:
            path = Path(os.path.relpath(folder / name, target)).as_posix()
            yield f"  {field}_path: {_scalar(path)}   # relative to this file"
            yield f"  {field}_checksum: {checksums[name]}"
    yield "# dataset: my_images          # the default of --dataset_name"
    yield "# description: what it does, and where it comes from"
    yield "# license: that of the model"


def _preprocessing(parameters: InputParameters) -> Iterator[str]:
    """Yields the preprocessing of images, which is assumed, since a model's file does not state it."""
    if not isinstance(parameters, ImageParameters):
        yield "# type image, with its parameters, takes pictures: see docs/manifests.md"
        return
    yield f"layout: {parameters.layout.value}"
    grey = parameters.color_mode is ColorMode.GRAY
    yield f"color_mode: {parameters.color_mode.value}" + ("" if grey else "           # or BGR")
    if parameters.element_type is not ElementType.UINT8:
        yield "# fill in what the model was trained with: (pixel - mean) / scale, with pixels in 0…255"
        yield "mean: 0                   # one number" + ("" if grey else ", or red, green and blue")
        yield "scale: 255"
    yield "keep_aspect_ratio: true   # resize the shorter side; false resizes both"
    yield "crop_method: center       # center, topleft, or none: the whole image is resized"
    yield "crop_ratio: 1             # resize to dimensions / crop_ratio, then crop; 0.875 for many models"


def _scalar(text: str) -> str:
    return yaml.safe_dump(text, allow_unicode=True, width=_WIDTH).splitlines()[0]
