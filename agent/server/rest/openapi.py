"""The OpenAPI 3.1 description of the routes, for tools that generate clients and documentation."""

from __future__ import annotations

from functools import cache
from typing import Any

from inferometer.agent import __version__

_JSON = "application/json"
_BINARY = "application/octet-stream"


def _text(**more: Any) -> dict[str, Any]:
    return {"type": "string", **more}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _object(required: tuple[str, ...] = (), /, **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return {**found, "required": list(required)} if required else found


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


_WHOLE = {"type": "integer"}
_ANY_OBJECT = {"type": "object"}
_SHAPE = _list(_WHOLE)
_PARAMETERS = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
_TENSOR_FIELDS: dict[str, Any] = {"name": _text(), "datatype": _text(), "shape": _SHAPE}
_COUNT = _object(count=_WHOLE, ns=_WHOLE)
_SCHEMAS: dict[str, Any] = {
    "Error": _object(("error",), error=_text(description="One line: what failed, and what to do.")),
    "Tensor": _object(
        ("name", "datatype", "shape"),
        **_TENSOR_FIELDS,
        parameters={
            **_PARAMETERS,
            "description": "binary_data_size: its bytes that follow the JSON, in place of data.",
        },
        data={"type": "array", "description": "The elements in row-major order, nested or flat."},
    ),
    "RequestedOutput": _object(
        ("name",),
        name=_text(),
        parameters={
            **_PARAMETERS,
            "description": "binary_data: whether the elements follow the JSON of the response; "
            "classification: as many of the best classes in place of the scores.",
        },
    ),
    "InferRequest": _object(
        ("inputs",),
        id=_text(description="Is repeated in the response."),
        parameters={
            **_PARAMETERS,
            "description": "timeout: microseconds; binary_data_output: all outputs as binary data.",
        },
        inputs=_list(_ref("Tensor")),
        outputs=_list(_ref("RequestedOutput")),
    ),
    "InferResponse": _object(
        ("model_name", "outputs"),
        model_name=_text(),
        model_version=_text(),
        id=_text(),
        parameters=_PARAMETERS,
        outputs=_list(_ref("Tensor")),
    ),
    "ServerMetadata": _object(name=_text(), version=_text(), extensions=_list(_text())),
    "ModelMetadata": _object(
        name=_text(),
        versions=_list(_text()),
        platform=_text(),
        inputs=_list(_object(**_TENSOR_FIELDS)),
        outputs=_list(_object(**_TENSOR_FIELDS)),
    ),
    "Statistics": _object(
        model_stats=_list(
            _object(
                name=_text(),
                version=_text(),
                last_inference=_WHOLE,
                inference_count=_WHOLE,
                execution_count=_WHOLE,
                inference_stats={"type": "object", "additionalProperties": _COUNT},
                batch_stats=_list(_ANY_OBJECT),
            )
        )
    ),
    "Index": _list(_object(name=_text(), version=_text(), state=_text(), reason=_text())),
}
_EMPTY: dict[str, Any] = {"description": "Done; the body is empty."}
_NO = {"400": {"description": "No; the body is empty."}}
_HEAD_LENGTH = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "description": "How many bytes of the body are JSON; binary data follows. 0: the body is the one input.",
    "schema": _WHOLE,
}
_FAILED = {"description": "It failed.", "content": {_JSON: {"schema": _ref("Error")}}}


def _answer(schema: dict[str, Any], description: str = "Success.") -> dict[str, Any]:
    return {"description": description, "content": {_JSON: {"schema": schema}}}


def _operation(
    summary: str, success: dict[str, Any], body: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": success, "default": _FAILED, **more.pop("responses", {})},
        **more,
    }
    if body is not None:
        found["requestBody"] = {"content": body}
    return found


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {_JSON: {"schema": schema}}


_LOADING = _body(_object(parameters={"type": "object"}))
_INFER = _operation(
    "Run a model",
    {
        "description": "The outputs; Inference-Header-Content-Length says where binary data begins.",
        "content": {_JSON: {"schema": _ref("InferResponse")}, _BINARY: {}},
    },
    {_JSON: {"schema": _ref("InferRequest")}, _BINARY: {}},
)
_INFER["parameters"] = [_HEAD_LENGTH]
_PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "/v2/health/live": ("get", _operation("Is the agent alive?", _EMPTY, security=[], responses=_NO)),
    "/v2/health/ready": ("get", _operation("Does the agent serve?", _EMPTY, security=[], responses=_NO)),
    "/v2": ("get", _operation("Describe the agent", _answer(_ref("ServerMetadata")))),
    "/v2/openapi.json": ("get", _operation("This description", _answer(_ANY_OBJECT))),
    "/v2/models/stats": ("get", _operation("Statistics of loaded models", _answer(_ref("Statistics")))),
    "/v2/models/{model}": ("get", _operation("Describe a model", _answer(_ref("ModelMetadata")))),
    "/v2/models/{model}/ready": ("get", _operation("Is a model loaded?", _EMPTY, responses=_NO)),
    "/v2/models/{model}/config": ("get", _operation("Triton's configuration", _answer(_ANY_OBJECT))),
    "/v2/models/{model}/stats": ("get", _operation("Statistics of a model", _answer(_ref("Statistics")))),
    "/v2/models/{model}/infer": ("post", _INFER),
    "/v2/repository/index": (
        "post",
        _operation("List the models", _answer(_ref("Index")), _body(_object(ready={"type": "boolean"}))),
    ),
    "/v2/repository/models/{model}/load": ("post", _operation("Load a model", _EMPTY, _LOADING)),
    "/v2/repository/models/{model}/unload": ("post", _operation("Unload a model", _EMPTY, _LOADING)),
}
_VERSIONED = "/v2/models/{model}"


def _shared_memory(kind: str, what: str, **fields: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns the paths of one kind of shared memory; ``fields`` register a region."""
    root, region = f"/v2/{kind}", f"/v2/{kind}/region/{{region}}"
    found: dict[str, tuple[str, dict[str, Any]]] = {
        f"{region}/register": (
            "post",
            _operation(f"Register a region of {what}", _EMPTY, _body(_object(tuple(fields), **fields))),
        )
    }
    for path, which in ((root, "the regions"), (region, "a region")):
        listed = _answer(_list(_ANY_OBJECT))
        found[f"{path}/status"] = ("get", _operation(f"Describe {which} of {what}", listed))
        found[f"{path}/unregister"] = ("post", _operation(f"Release {which} of {what}", _EMPTY))
    return found


_PATHS |= _shared_memory("systemsharedmemory", "shared memory", key=_text(), offset=_WHOLE, byte_size=_WHOLE)
_PATHS |= _shared_memory(
    "cudasharedmemory",
    "a GPU's memory, which is not offered",
    raw_handle=_object(b64=_text()),
    device_id=_WHOLE,
    byte_size=_WHOLE,
)


@cache
def described_routes() -> dict[str, Any]:
    """Returns the description as a JSON object."""
    paths: dict[str, Any] = {}
    for path, (verb, operation) in _PATHS.items():
        paths[path] = _with_names(path, verb, operation)
        if path.startswith(_VERSIONED):
            versioned = path.replace(_VERSIONED, f"{_VERSIONED}/versions/{{version}}")
            paths[versioned] = _with_names(versioned, verb, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "inferometer: the Open Inference Protocol V2 with Triton's extensions",
            "version": __version__,
        },
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"secret": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"secret": []}],
    }


def _with_names(path: str, verb: str, operation: dict[str, Any]) -> dict[str, Any]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    found: dict[str, Any] = {verb: operation}
    if names:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": _text()} for name in names
        ]
    return found
