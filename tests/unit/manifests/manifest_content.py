"""A valid manifest, as YAML parses it, and ways to change it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

MODEL: dict[str, Any] = {
    "kind": "model",
    "name": "Tiny",
    "version": "1.0",
    "framework": {"name": "MXNet", "version": ">=1.9, <2"},
    "inputs": [
        {
            "type": "image",
            "parameters": {"dimensions": [3, 224, 200], "mean": [123.68, 116.779, 103.939], "scale": 58.0},
        }
    ],
    "output": {"type": "classification", "parameters": {"labels": ["cat", "dog"]}},
    "model": {"graph_path": "tiny-symbol.json", "weights_path": "tiny.params"},
}
DATASET: dict[str, Any] = {"kind": "dataset", "name": "pets", "version": "1.0", "path": "pets.zip"}
REMOVED = object()


def changed(content: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy of ``content`` with the value at ``path``, such as ``inputs.0.type``, replaced or removed."""
    content = copy.deepcopy(content)
    node: Any = content
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    for part in parents:
        node = node[part]
    if value is REMOVED:
        del node[last]
    else:
        node[last] = value
    return content


def model(**fields: object) -> dict[str, Any]:
    return {**copy.deepcopy(MODEL), **fields}


def write(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path
