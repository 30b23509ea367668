"""docs/protocol.md: its methods, errors and limits match the program, and its example works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from inferometer.agent.inference.registry import Registry
from inferometer.agent.protocol.status import (
    AUTHORIZATION_KEY,
    ERROR_CLASS_KEY,
    LAYERS_KEY,
    LEVEL_KEY,
    STATUS_CODES,
)
from inferometer.agent.protocol.tensors import ELEMENT_TYPES
from inferometer.agent.server.rpc import MAX_CALLS
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.tracing.recorder import TRACEPARENT_KEY
from inferometer.manifests.catalog import Catalog
from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2, tensor_pb2


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "protocol.md").read_text(encoding="utf-8")


def _rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without the table's own heading."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 2, heading
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


def _kind(method: object) -> str:
    kinds = {
        (False, False): "unary",
        (False, True): "server streaming",
        (True, True): "bidirectional streaming",
    }
    return kinds[bool(method.client_streaming), bool(method.server_streaming)]  # type: ignore[attr-defined] # protobuf's


def test_the_methods_are_those_of_the_protocol(page: str) -> None:
    services = [
        service
        for file in (predict_pb2.DESCRIPTOR, registry_pb2.DESCRIPTOR, tensor_pb2.DESCRIPTOR)
        for service in file.services_by_name.values()
    ]
    methods = {(f"`{s.full_name}`", f"`{m.name}`", _kind(m)) for s in services for m in s.methods}
    rows = _rows(page, "Methods")

    assert {tuple(row[:3]) for row in rows} == methods
    assert len(rows) == len(methods)


def test_every_error_stands_once_beside_the_status_that_it_becomes(page: str) -> None:
    described = [(name, row[0]) for row in _rows(page, "Errors") for name in re.findall(r"`(\w+)`", row[1])]

    assert sorted(described) == sorted((kind.__name__, code.name) for kind, code in STATUS_CODES.items())


def test_every_status_stands_in_one_row(page: str) -> None:
    codes = [row[0] for row in _rows(page, "Errors")]

    assert sorted(codes) == sorted({code.name for code in STATUS_CODES.values()})


def test_the_metadata_are_those_that_the_server_reads_and_writes(page: str) -> None:
    keys = {AUTHORIZATION_KEY, TRACEPARENT_KEY, LEVEL_KEY, LAYERS_KEY, ERROR_CLASS_KEY}

    assert {row[0].strip("`") for row in _rows(page, "Metadata")} == keys


def test_the_element_types_are_those_of_tensors(page: str) -> None:
    (sentence,) = re.findall(r"Element types: (.*?);", page, re.DOTALL)

    assert re.findall(r"`(\w+)`", sentence) == list(ELEMENT_TYPES)


def test_the_limits_have_the_defaults_of_the_server(page: str) -> None:
    options = ServerOptions()
    limits = {row[0]: row[1] for row in _rows(page, "Limits")}

    assert limits["a request"] == f"{options.max_message_bytes // 1024**2} MiB"
    assert limits["inputs of a request"] == f"{options.limits.max_inputs:,}"
    assert limits["an image"] == f"{options.limits.max_pixels // 10**6} megapixels"
    assert limits["open sessions"] == str(options.max_sessions)
    assert limits["requests that wait for a model"].startswith(f"{options.serving.batching.max_queue:,}, ")
    assert limits["calls at once"].startswith(f"{MAX_CALLS:,}, ")
    assert f"{options.workers} threads" in limits["streams at once"]


def test_the_example_predicts_a_digit(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    Image.new("L", (8, 8)).save(tmp_path / "digit.png")
    monkeypatch.chdir(tmp_path)
    server = AgentServer(Catalog(), Registry.discover(), ServerOptions(port=0, secret="hush", grace_s=5))
    names = {"SECRET": "hush"}
    with server:
        exec(example.replace("127.0.0.1:50051", server.address), names)

    assert names["answer"].input_ids == ["1"]
    assert not names["answer"].failures
