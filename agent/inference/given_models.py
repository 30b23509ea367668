"""Models without a manifest: a file or an object in memory, with a manifest inferred for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from inferometer.agent.artifacts.files import InputSignature, ModelSignature
from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.manifests.errors import (
    ArtifactError,
    ArtifactUnavailableError,
    ConfigurationError,
    ManifestError,
    explained,
    printable,
    suggestion,
)
from inferometer.manifests.inputs import DYNAMIC_AXIS, ElementType, TensorElementType
from inferometer.manifests.loader import parse_manifest
from inferometer.manifests.schema import INFERRED, ModelManifest

_MOST_NAME_CHARACTERS = 100
_FLOAT32 = "float32"
_IMAGE_AXES = 4


@dataclass(frozen=True, slots=True)
class Wanted:
    """The properties that a caller specifies for a model without a manifest.

    Attributes:
        shape: The shape of one input, without the batch; None means that the model declares it.
        element_type: NumPy's name for the dtype of the inputs; None means that the model declares it.
        images: Whether the inputs are images, so that the manifest needs preprocessing.
        tensors: Whether inputs may also be tensors, as in an .npz; if they are not images, they always are.
        name: The model's name in the manifest; None means the name of its file or class.
        examples: The tensors of an example batch for a model with several inputs, by name or, unnamed, in the
            order of the inputs.
    """

    shape: tuple[int, ...] | None = None
    element_type: str | None = None
    images: bool = False
    tensors: bool = True
    name: str | None = None
    examples: tuple[InputSignature, ...] = ()


Task: TypeAlias = tuple[Mapping[str, Any], str, str]
"""The ``output`` field that a model's outputs suggest; ``certain``, ``likely`` or ``guess``; the reason."""


@dataclass(frozen=True, slots=True)
class GivenModel:
    """A model with the manifest that was inferred for it.

    Attributes:
        manifest: The manifest; its source is the model's file.
        fixed_batch: The only batch size that the model accepts; None for any.
        notes: What was found and what was assumed, one line each.
        checksums: The checksums of a model in memory; files are hashed when they are opened.
        in_memory: The model, if it is an object of this process; None for a file.
        task: The task that its outputs suggest; the manifest does not use it.
    """

    manifest: ModelManifest
    fixed_batch: int | None = None
    notes: tuple[str, ...] = ()
    checksums: Mapping[str, str] = field(default_factory=dict)
    in_memory: object | None = field(default=None, compare=False)
    task: Task = ({"type": "raw"}, "guess", "nothing is known about its outputs")


def is_model_file(path: str, registry: Registry) -> bool:
    """Returns whether a text is the name of a model's file, judging by its suffix."""
    return any(path.casefold().endswith(entry.suffixes) for entry in registry.entries if entry.suffixes)


def model_of_file(path: Path, registry: Registry, wanted: Wanted = Wanted()) -> GivenModel:
    """Infers the manifest of a model's file.

    Raises:
        ArtifactError: The file does not exist, or is not a readable model.
        FrameworkUnavailableError: Its framework is not installed.
        ConfigurationError: One shape was given for several inputs, or an input cannot be described.
    """
    entry = _entry_of_file(path, registry)
    signature = entry.load().signature_of_file(path)
    graph = signature.graph or path
    files = {"graph_path": graph.name} | (
        {"weights_path": signature.weights.name} if signature.weights else {}
    )
    stem = graph.name[: -len(next(s for s in entry.suffixes if graph.name.casefold().endswith(s)))]
    attributes = {INFERRED: f"inferred from {graph.name}"}
    return _given(str(graph), entry, signature, wanted, stem, files, attributes, graph)


def model_of_object(model: object, registry: Registry, wanted: Wanted = Wanted()) -> GivenModel:
    """Infers the manifest of a model in memory.

    The manifest names the class but no file: it cannot be used to build the model again.

    Raises:
        ConfigurationError: No framework accepts objects of this class, or the input cannot be described.
        ArtifactError: The object cannot be used in its current state.
    """
    kind = type(model)
    name = f"{kind.__module__}.{kind.__qualname__}"
    ancestors = {f"{each.__module__}.{each.__qualname__}" for each in kind.__mro__}
    entry = next((each for each in registry.entries if ancestors & set(each.classes)), None)
    if entry is None:
        known = ", ".join(each.rpartition(".")[2] for one in registry.entries for each in one.classes)
        raise ConfigurationError(
            f"model is {name}; accepted: a name, a file, or an object of a class {known} (or derived)"
        )
    examples = wanted.examples
    if wanted.shape is not None:
        examples = (InputSignature("", wanted.element_type, (None, *wanted.shape)),)
    signature = entry.load().signature_of_object(model, examples)
    files = {"architecture": name[-2 * _MOST_NAME_CHARACTERS :]}
    attributes = {
        INFERRED: "inferred from an object in memory, which cannot be built again from this record",
        "class": name,
        **signature.attributes,
    }
    return _given(kind.__qualname__, entry, signature, wanted, kind.__name__, files, attributes, None, model)


def _given(
    where: str,
    entry: FrameworkEntry,
    signature: ModelSignature,
    wanted: Wanted,
    name: str,
    files: Mapping[str, str],
    attributes: Mapping[str, Any],
    source: Path | None,
    in_memory: object | None = None,
) -> GivenModel:
    if not signature.inputs:
        raise ConfigurationError(f"{where}: has no inputs; accepted: a model with inputs")
    several = len(signature.inputs) > 1
    if several and wanted.shape is not None:
        shown_names = [each.name for each in signature.inputs[:5]] + ["…"] * (len(signature.inputs) > 5)
        names = f"{len(signature.inputs)} inputs: {', '.join(shown_names)}"
        raise ConfigurationError(f"{where}: has {names}; a single shape can describe only a single input")
    inputs, shown, batches = [], [], set()
    for place, found in enumerate(signature.inputs):
        known = replace(wanted, images=False, tensors=True) if several and wanted.tensors else wanted
        content, described = _input(where, found, known, _example(found, place, wanted))
        inputs.append(content)
        shown.append(f"input {found.name}, {described}")
        batches.add(found.shape[0] if found.shape else None)
    fixed = max(batches, key=lambda size: size or 0)
    content = {
        "name": printable(wanted.name or name)[:_MOST_NAME_CHARACTERS] or "model",
        "framework": {"name": entry.name},
        "inputs": inputs,
        "output": {"type": "raw"},
        "model": dict(files),
        "attributes": dict(attributes),
    }
    try:
        manifest = parse_manifest(content, source or Path(where))
    except ManifestError as error:
        raise ConfigurationError(f"{where}: cannot be described by a manifest: {error}") from error
    assert isinstance(manifest, ModelManifest)  # noqa: S101 - a manifest without kind is a model's
    notes = (*(f"{where}: {each}" for each in shown), *signature.notes)
    images = any(each.type == "image" for each in manifest.inputs)
    task = guessed_task(signature, images=images, open_batch=fixed is None)
    return GivenModel(manifest, fixed, notes, signature.checksums, in_memory, task)


def guessed_task(signature: ModelSignature, *, images: bool, open_batch: bool) -> Task:
    """Returns the task that the names, shapes, element types and operators of a model's outputs suggest.

    With ``images``, an input is an image; with ``open_batch``, batches may have any size.
    """
    whole = [
        each.name
        for each in signature.outputs
        if each.shape == () or (open_batch and each.shape and each.shape[0] not in (None, 1))
    ]
    outputs = [each for each in signature.outputs if each.name not in whole]
    scores = next(
        (each for each in outputs if _is_float(each) and each.shape and each.shape[1:] not in ((), (1,))),
        None,
    )
    classes = [
        each for each in outputs if not _is_float(each) and each.shape and each.shape[1:] in ((), (1,))
    ]
    labels = {"labels": list(signature.classes)} if signature.classes else {}
    sure = "certain" if labels else "likely"
    maps = next((each.name for each in outputs if signature.operators.get(each.name) == "ZipMap"), None)
    label = _named("label|class", classes)
    boxes, of_boxes = _named("box", outputs), _named("score|conf|prob", outputs)
    start, end = _named("start", outputs), _named("end", outputs)
    if maps:
        found = _task(
            "classification", "certain", f"{maps} is the output of ZipMap", probabilities_layer=maps, **labels
        )
    elif boxes and of_boxes:
        masks, of_box = _named("mask", outputs), _named("label|class", outputs)
        kind = "instance_segmentation" if masks else "object_detection"
        layers = {"boxes_layer": boxes, "probabilities_layer": of_boxes, "classes_layer": of_box}
        found = _task(kind, "likely", f"of the names {boxes} and {of_boxes}", **layers, masks_layer=masks)
    elif label and scores and _named("prob|score", [scores]):
        reason = f"{label} contains the class, and {scores.name} its scores"
        found = _task("classification", sure, reason, probabilities_layer=scores.name, **labels)
    elif label:
        found = _task("classification", sure, f"{label} contains the class", classes_layer=label, **labels)
    elif start and end:
        reason = f"of the names {start} and {end}"
        found = _task("question_answering", "likely", reason, start_layer=start, end_layer=end)
    else:
        found = _task_of_numbers(next(filter(_is_float, outputs), None), signature, images)
    beside = f"; outputs for the whole batch: {', '.join(whole)}" if whole else ""
    return found[0], found[1], found[2] + beside


def _task_of_numbers(output: InputSignature | None, signature: ModelSignature, images: bool) -> Task:
    """Returns the task of a model whose outputs have no telling names, by the first with numbers."""
    if output is None or not output.shape:
        return _task("raw", "guess", "the file does not describe its outputs")
    name, sides, operator = output.name, output.shape[1:], signature.operators.get(output.name, "")
    shape = f"{name} has the shape {_shown(output.shape)}"
    if operator.endswith("Regressor"):
        return _task("regression", "certain", f"{name} is the output of {operator}", values_layer=name)
    if name == "variable":
        return _task("regression", "likely", f"skl2onnx gives regressors the name {name}", values_layer=name)
    if len(sides) == 3 and images and set(sides[1:]) != {1}:
        if sides[0] in (1, 3):
            return _task("image_enhancement", "guess", shape, image_layer=name)
        return _task("semantic_segmentation", "likely", shape, masks_layer=name)
    if any(side != 1 for side in sides[1:]):
        return _task("raw", "guess", f"{shape}, which fits no task")
    if re.search("embed|pool|feature", name.casefold()) or operator == "LpNormalization":
        return _task("embedding", "likely", f"of the name or operator of {name}", embedding_layer=name)
    if sides in ((), (1,)):
        return _task("regression", "guess", f"{shape}: one number for each input", values_layer=name)
    texts = any("input_ids" in each.name for each in signature.inputs)
    is_softmax = operator in ("Softmax", "LogSoftmax")
    likely = images or re.search("logit|score|prob|class", name.casefold())
    transform = "none" if operator in ("Softmax", "Sigmoid") or "prob" in name.casefold() else "softmax"
    return _task(
        "text_classification" if texts else "classification",
        "certain" if is_softmax else "likely" if likely else "guess",
        f"{name} is the output of {operator}" if is_softmax else shape,
        probabilities_layer=name,
        probabilities_transform=transform,
    )


def _task(kind: str, sure: str, reason: str, **parameters: Any) -> Task:
    given = {name: value for name, value in parameters.items() if value is not None}
    return {"type": kind, "parameters": given}, sure, reason


def _named(pattern: str, outputs: Sequence[InputSignature]) -> str | None:
    """Returns the name of the first output whose name contains a pattern."""
    return next((each.name for each in outputs if re.search(pattern, each.name.casefold())), None)


def _is_float(output: InputSignature) -> bool:
    return (output.element_type or "").startswith(("float", "bfloat"))


def _input(
    where: str, found: InputSignature, wanted: Wanted, example: InputSignature | None
) -> tuple[dict[str, Any], str]:
    """Returns an input's description for a manifest, and the same description in words."""
    if example is not None and example.shape is not None:
        wanted = replace(
            wanted,
            shape=tuple(size or DYNAMIC_AXIS for size in example.shape[1:]),
            element_type=example.element_type,
        )
    dimensions, element_type = _dimensions(where, found, wanted), _element_type(where, found, wanted)
    image = _image_parameters(dimensions, element_type) if wanted.images else None
    shape = f"{element_type} ({', '.join(map(str, ('batch', *dimensions)))})"
    if wanted.images and image is None and not wanted.tensors:
        raise ConfigurationError(
            f"{where}: input {found.name}, {shape}, does not say how an image becomes a tensor; agent "
            "manifest init writes a manifest to complete"
        )
    fixed = found.shape[0] if found.shape else None
    of_one = f", batches of {fixed} only" if fixed else ""
    assumed = f"; {_described(image)}" if image else ""
    content = {
        "type": "image" if image else "tensor",
        "parameters": {
            "dimensions": list(dimensions),
            "element_type": element_type,
            "input_layer": found.name,
            **(image or {}),
        },
    }
    return content, f"{shape}{of_one}{assumed}"


def _example(found: InputSignature, place: int, wanted: Wanted) -> InputSignature | None:
    """Returns the caller's example for an input, found by its name or, failing that, its position."""
    named = {each.name: each for each in wanted.examples if each.name}
    if named:
        return named.get(found.name)
    return wanted.examples[place] if place < len(wanted.examples) else None


def _entry_of_file(path: Path, registry: Registry) -> FrameworkEntry:
    accepted = "; ".join(f"{' '.join(e.suffixes)} ({e.name})" for e in registry.entries if e.suffixes)
    with explained(ArtifactError, f"{path}: cannot be read"):
        if path.is_dir():
            raise ArtifactError(f"{path}: is a folder; name a model's file: {accepted}")
        if not path.exists():
            beside = path.parent.iterdir() if path.parent.is_dir() else ()
            models = [each.name for each in beside if is_model_file(each.name, registry)]
            near = suggestion(path.name, models)
            hint = f"; {near}" if near.startswith("did you mean") else ""
            raise ArtifactUnavailableError(f"{path}: does not exist{hint}")
    for entry in registry.entries:
        if entry.suffixes and path.name.casefold().endswith(entry.suffixes):
            return entry
    raise ArtifactError(f"{path}: no framework reads files with such a name; accepted: {accepted}")


def _dimensions(where: str, found: InputSignature, wanted: Wanted) -> tuple[int, ...]:
    """Returns the shape of one input according to the model or, if it is open there, to the caller."""
    given, shape = wanted.shape, found.shape
    if shape is not None and len(shape) < 2:
        raise ConfigurationError(
            f"{where}: input {found.name} has the shape {_shown(shape)}; accepted: a batch, and 1 to 8 sizes"
        )
    if given is None:
        # an input with the axes of images has open sizes where a size is to be chosen
        if shape is not None and len(shape) != _IMAGE_AXES:
            return tuple(DYNAMIC_AXIS if size is None else size for size in shape[1:])
        if shape is None or None in shape[1:]:
            known = f"the shape {_shown(shape)}, in which not only the batch is open" if shape else "no shape"
            raise ConfigurationError(
                f"{where}: input {found.name} has {known}; give input_shape, without the batch, such as "
                "3,224,224"
            )
        return tuple(size for size in shape[1:] if size is not None)
    fits = shape is None or len(shape) - 1 == len(given)
    if shape is not None and not (
        fits and all(size in (None, one) for size, one in zip(shape[1:], given, strict=True))
    ):
        raise ConfigurationError(
            f"{where}: input {found.name} has the shape {_shown(shape)}; found inputs of "
            f"{_shown((None, *given))}"
        )
    return given


def _element_type(where: str, found: InputSignature, wanted: Wanted) -> str:
    """Returns the dtype of the input: float32 if neither the model nor the caller implies another dtype."""
    given = wanted.element_type
    element_type = found.element_type or (given if given and "int" in given else None) or _FLOAT32
    accepted = [each.value for each in TensorElementType]
    if element_type not in accepted:
        raise ConfigurationError(
            f"{where}: input {found.name} is {element_type}; accepted: {', '.join(accepted)}"
        )
    return element_type


def _image_parameters(dimensions: Sequence[int], element_type: str) -> dict[str, Any] | None:
    """Returns how an image becomes the input; None if the shape does not determine the channels."""
    if len(dimensions) != 3 or element_type not in {each.value for each in ElementType}:
        return None
    first, last = dimensions[0] in (1, 3), dimensions[2] in (1, 3)
    if first == last:
        return None
    channels = dimensions[0] if first else dimensions[2]
    return {
        "layout": "CHW" if first else "HWC",
        "color_mode": "GRAY" if channels == 1 else "RGB",
        "scale": 1 if element_type == ElementType.UINT8.value else 255,
        "keep_aspect_ratio": True,
    }


def _described(image: Mapping[str, Any]) -> str:
    values = "0…255" if image["scale"] == 1 else "0…1"
    color = "grey" if image["color_mode"] == "GRAY" else "RGB"
    return f"assumed of images: {image['layout']}, {color}, pixels {values}, resized and cropped"


def _shown(shape: Sequence[int | None]) -> str:
    names = ["batch" if shape[:1] == (None,) else str(shape[0])] if shape else []
    return f"({', '.join([*names, *('?' if size is None else str(size) for size in shape[1:])])})"
