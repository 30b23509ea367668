"""What a manifest asks for, and this program does not do; and where the files are that it names by URL.

A manifest that was written for MLModelScope is listed whatever it asks for. What cannot be honoured is said
when the model is opened, so that nothing means something else than it says.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from agent.artifacts import resolve_file
from manifests.errors import ArtifactError, ManifestError
from manifests.original import HOOKS, is_numbered_layer
from manifests.schema import ImageParameters, ModelManifest

_POSTPROCESSED = ("classification", "raw")
_SCORES = ("", "float32", "float16")


def unsupported(manifest: ModelManifest) -> list[str]:
    """Returns what the model asks for and cannot have, each as one line that begins with the field."""
    found = []
    if len(manifest.inputs) > 1:
        found.append(
            f"field inputs: found {len(manifest.inputs)}; a model with more than one is not supported"
        )
    for place, model_input in enumerate(manifest.inputs):
        found += [f"field inputs.{place}.parameters.{text}" for text in _of_image(model_input.parameters)]
    output = manifest.output
    if output.type not in _POSTPROCESSED:
        found.append(
            f"field output.type: found '{output.type}', which has no postprocessing here; "
            f"supported: {', '.join(_POSTPROCESSED)}"
        )
    elif output.type == "classification" and output.parameters.element_type not in _SCORES:
        found.append(
            f"field output.parameters.element_type: found '{output.parameters.element_type}'; "
            "a classification's scores are float32 or float16"
        )
    for hook in HOOKS:
        if getattr(manifest, hook):
            found.append(f"field {hook}: holds code, and code in a manifest is never run")
    if manifest.model.is_archive:
        found.append(
            "field model.is_archive: is true; unpack the archive, give its files' paths, and leave it out"
        )
    return found


def _of_image(parameters: ImageParameters) -> list[str]:
    found = []
    if not parameters.dimensions:
        found.append("dimensions: is missing; images of any size are not supported")
    elif parameters.channels_first:
        found.append(
            f"dimensions: found {list(parameters.dimensions)}, which is CHW, but layout is HWC; "
            "write dimensions in the order of layout"
        )
    if parameters.max_dimension is not None:
        found.append(f"max_dimension: found {parameters.max_dimension}; it is not supported")
    if is_numbered_layer(parameters.input_layer):
        number = parameters.input_layer[1:]
        found.append(f"input_layer: found {number}; supported: 0, the first input, or an input's name")
    return found


def require_supported(manifest: ModelManifest) -> ModelManifest:
    """Returns the manifest.

    Raises:
        ManifestError: It asks for something that cannot be had.
    """
    if found := unsupported(manifest):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ManifestError(
            f"{manifest.source}: model {manifest.name} {manifest.version} cannot be opened: {found[0]}{more}"
        )
    return manifest


def with_local_files(manifest: ModelManifest, *, weights: bool = True) -> ModelManifest:
    """Returns the manifest with the paths of its files on this machine, instead of URLs.

    Args:
        manifest: The model.
        weights: Whether the file with the weights is wanted.

    Raises:
        ArtifactError: A file is at a URL and is not beside the manifest. Nothing is downloaded.
    """
    files = manifest.model
    local = {"graph_path": files.graph_path}
    if weights:
        local["weights_path"] = files.weights_path
    for field, path in local.items():
        if path is not None:
            local[field] = _local(manifest, f"model.{field}", path, files.base_url)
    changed = manifest.model_copy(update={"model": files.model_copy(update=local)})
    changed._source = manifest.source
    return changed


def with_labels(manifest: ModelManifest) -> ModelManifest:
    """Returns the manifest with the labels of the file at ``features_url``, if it is beside the manifest.

    Without the file the manifest's own labels stay, of which there may be none.

    Raises:
        ArtifactError: The file has another checksum, or is no text.
    """
    parameters = manifest.output.parameters
    if not parameters.features_url:
        return manifest
    path = next(
        (path for path in _candidates(parameters.features_url, "") if _is_there(manifest, path)), None
    )
    file = resolve_file(manifest, path, parameters.features_checksum)
    if file is None:
        return manifest
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{file}: the labels cannot be read: {' '.join(str(error).split())}") from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise ArtifactError(f"{file}: holds no labels")
    parameters = parameters.model_copy(update={"labels": tuple(line.strip() for line in lines)})
    changed = manifest.model_copy(
        update={"output": manifest.output.model_copy(update={"parameters": parameters})}
    )
    changed._source = manifest.source
    return changed


def _local(manifest: ModelManifest, field: str, path: str, base_url: str) -> str:
    candidates = _candidates(path, base_url)
    for candidate in candidates:
        if _is_there(manifest, candidate):
            return candidate
    address = path if _is_url(path) or not base_url else f"{base_url.rstrip('/')}/{path.lstrip('/')}"
    if not _is_url(address):
        return candidates[0]  # whose absence is said where the file is looked for
    if not candidates[-1]:
        raise ArtifactError(f"{manifest.source}: field {field}: the URL {address} has no file name")
    raise ArtifactError(
        f"{manifest.source}: field {field}: {address} is not downloaded; get the file, and put it at "
        f"{_beside(manifest, candidates[-1])}"
    )


def _candidates(path: str, base_url: str) -> list[str]:
    """The places where a file may be, relative to the manifest; of one at a URL, the last is its name."""
    if _is_url(path):
        return [_file_name(path)]
    if _is_url(base_url):
        return list(dict.fromkeys([path, PurePosixPath(path).name]))
    return [f"{base_url.rstrip('/')}/{path}", path] if base_url else [path]


def _file_name(url: str) -> str:
    """The last part of a URL's path; empty where there is none."""
    after_host = re.split("[?#]", url.partition("://")[2])[0].partition("/")[2]
    return PurePosixPath(unquote(after_host)).name


def _is_url(text: str) -> bool:
    return "://" in text


def _beside(manifest: ModelManifest, path: str) -> Path:
    return Path(path) if manifest.source is None else manifest.source.parent / path


def _is_there(manifest: ModelManifest, path: str) -> bool:
    try:
        return bool(path) and _beside(manifest, path).is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False
