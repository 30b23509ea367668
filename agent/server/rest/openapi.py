"""The OpenAPI 3.1 description of the routes, for tools that generate clients and documentation.

``openapi.json`` has what differs by route. What follows from a path, and how every operation fails, is added.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from inferometer.agent import __version__

_MODEL = "/v2/models/{model}"
_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
_FAILED = {"description": "It failed.", "content": _ERROR}


@cache
def described_routes() -> dict[str, Any]:
    """Returns the description as a JSON object."""
    found: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    found["info"]["version"] = __version__
    paths, found["paths"] = found["paths"], {}
    for path, item in paths.items():
        for operation in item.values():
            responses = operation["responses"]
            operation["responses"] = {"200": responses.pop("200"), "default": _FAILED, **responses}
        found["paths"][path] = _with_names(path, item)
        if path.startswith(_MODEL):
            versioned = path.replace(_MODEL, f"{_MODEL}/versions/{{version}}")
            found["paths"][versioned] = _with_names(versioned, item)
    return found


def _with_names(path: str, item: dict[str, Any]) -> dict[str, Any]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    of_path = {"in": "path", "required": True, "schema": {"type": "string"}}
    parameters = [{"name": each, **of_path} for each in names]
    return {**item, "parameters": parameters} if names else item
