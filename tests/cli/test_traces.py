"""Traces from the command line: recorded, stored, reported, exported to files and to a collector."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Agent, Answer
from tests.integration.trace_collectors import HOST, Seen, otlp_grpc, zipkin

EVALUATE = ("predict", "dataset", "--framework_name=PyTorch", "--batch_size=16", "--num_file_parts=4")


def evaluation_id(answer: Answer) -> str:
    return answer.figure("evaluation")


def rows(agent: Agent, *arguments: str) -> list[dict[str, str]]:
    return agent("info", "evaluation", *arguments, "-f", "csv").rows


@pytest.fixture
def traced(agent: Agent) -> str:
    return evaluation_id(agent(*EVALUATE, "--trace_level=framework_trace"))


def test_layers_of_a_traced_evaluation_are_reported(agent: Agent, traced: str) -> None:
    found = rows(agent, "layers")

    convolutions = [row for row in found if row["layer_type"] == "aten::conv2d"]
    assert convolutions
    assert {row["id"] for row in found} == {traced}
    assert {row["occurrences"] for row in convolutions} == {"4"}
    assert all(row["input_shapes"].startswith("16x") for row in convolutions)
    assert sum(float(row["share_percent"]) for row in found) == pytest.approx(100)
    assert len(rows(agent, "layers", "--top_layers=2")) == 2
    assert rows(agent, "layer_tree")[0]["layer_type"] in {row["layer_type"] for row in found}


def test_the_spans_of_an_evaluation_form_one_tree(agent: Agent, traced: str) -> None:
    found = rows(agent, "eventflow", "--id", traced)

    by_id = {row["span_id"]: row for row in found}
    [root] = [row for row in found if not row["parent_id"]]
    assert root["name"] == "evaluation"

    def names_above(row: dict[str, str]) -> list[str]:
        return [*names_above(by_id[row["parent_id"]]), row["name"]] if row["parent_id"] else [row["name"]]

    paths = {"/".join(names_above(row)[:5]) for row in found}
    assert {
        "evaluation/open/load",
        "evaluation/warm_up/predict_step/predict",
        "evaluation/measure/read",
        "evaluation/measure/preprocess",
        "evaluation/measure/predict_step/postprocess",
    } <= paths
    layers = [row for row in found if row["level"] == "FRAMEWORK_TRACE"]
    assert {"/".join(names_above(row)[:-1]) for row in layers} == {"evaluation/measure/predict_step/predict"}
    assert sum(row["name"] == "read" for row in found) == 64 + 16


def test_a_trace_is_written_for_other_programs(agent: Agent, traced: str, tmp_path: Path) -> None:
    for name in ("chrome", "otlp-json", "flamegraph"):
        assert agent("trace", "export", traced, "--format", name, "-o", tmp_path / name).code == 0

    events: list[dict[str, Any]] = json.loads((tmp_path / "chrome").read_text())["traceEvents"]
    [of_resource] = json.loads((tmp_path / "otlp-json").read_text())["resourceSpans"]
    spans = of_resource["scopeSpans"][0]["spans"]
    told = {pair["key"] for pair in of_resource["resource"]["attributes"]}
    assert {"service.name", "service.instance.id", "service.version", "host.name", "process.pid"} <= told
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == len(spans) > 64
    assert all(event["dur"] >= 0 for event in complete)
    svg = ElementTree.fromstring((tmp_path / "flamegraph").read_text())
    assert any("predict: " in (e.text or "") for e in svg.iter("{http://www.w3.org/2000/svg}title"))

    again = agent("trace", "export", traced, "-o", tmp_path / "chrome")
    assert again.code == 7
    assert "exists; overwrite it (--overwrite), or name another file" in again.error
    assert agent("trace", "export", traced, "-o", tmp_path / "chrome", "--overwrite").code == 0
    assert json.loads(agent("trace", "export", traced).stdout)["traceEvents"]


def test_without_a_trace_there_is_nothing_and_it_is_said_why(agent: Agent) -> None:
    untraced = evaluation_id(agent(*EVALUATE, "--trace_level=NO_TRACE"))

    assert f"evaluation {untraced} has no trace" in agent("trace", "export", untraced).error
    assert "holds no evaluation nobody" in agent("trace", "export", "nobody").error
    for report, level in (("layers", "FRAMEWORK_TRACE"), ("kernels", "SYSTEM_LIBRARY_TRACE")):
        result = agent("info", "evaluation", report, "-f", "csv")
        assert len(result.stdout.splitlines()) == 1
        assert f"evaluate with --trace_level={level}" in result.stderr


def test_that_no_batch_was_full_is_said_where_layers_are_missing(agent: Agent) -> None:
    agent(*EVALUATE, "--batch_size=512", "--trace_level=FRAMEWORK_TRACE")

    for report in ("layers", "layer_tree"):
        result = agent("info", "evaluation", report, "-f", "csv")
        assert not result.rows
        assert "left out 1 of 1 evaluations: none of their batches held the full batch size" in result.error
    assert agent("info", "evaluation", "layers", "--raw", "-f", "csv").rows


def test_kernels_of_a_processor_are_none_and_it_is_said_why(agent: Agent) -> None:
    agent(*EVALUATE, "--trace_level=SYSTEM_LIBRARY_TRACE")

    result = agent("info", "evaluation", "cuda_launch", "-f", "csv")

    assert len(result.stdout.splitlines()) == 1
    assert "the model runs on the CPU" in result.stderr


def test_durations_have_a_row_for_each_batch(agent: Agent) -> None:
    agent(*EVALUATE)

    assert [row["batch"] for row in rows(agent, "duration")] == ["0", "1", "2", "3"]


def test_a_wrong_address_or_level_is_refused_before_anything_is_loaded(agent: Agent) -> None:
    address = "--tracer_address=ftp://host"
    for wrong in ([address], ["--trace_level=DEEP_TRACE"], [address, "--trace_level=NO_TRACE"]):
        answer = agent(*EVALUATE, *wrong)
        assert answer.code == 2
        assert "PyTorch 2" not in answer.error


def test_a_collector_that_is_not_there_costs_nothing_but_a_line(agent: Agent) -> None:
    result = agent(*EVALUATE, "--tracer_address=http://127.0.0.1:9/v1/traces")

    assert "spans were not delivered to" in result.stderr
    assert re.search(r"^trace +\d+ spans  http://127\.0\.0\.1:16686/trace/[0-9a-f]{32}$", result.stdout, re.M)
    assert evaluation_id(result)


def test_a_stored_trace_is_sent_to_a_collector_that_was_away(agent: Agent) -> None:
    evaluation = agent(*EVALUATE, "--trace_level=MODEL_TRACE", f"--tracer_address={HOST}:9")
    id_ = evaluation_id(evaluation)
    away = agent("trace", "send", id_, f"--tracer_address=zipkin://{HOST}:9")
    assert away.code == 7
    assert "were not delivered" in away.error

    seen = Seen()
    with otlp_grpc(seen) as port:
        sent = agent("trace", "send", id_, f"--tracer_address={HOST}:{port}", "--trace_url=http://jaeger:1/")

    stored = {row["span_id"]: row["name"] for row in rows(agent, "eventflow", "--id", id_)}
    assert {f"{span_id:016x}": span.name for span_id, span in seen.spans.items()} == stored
    [trace_id] = {span.trace_id for span in seen.spans.values()}
    assert sent.stdout.splitlines() == [
        f"{len(stored)} spans delivered to {HOST}:{port} (OTLP/gRPC)",
        f"http://jaeger:1/trace/{trace_id}",
    ]
    processes = {resource["process.pid"] for resource in seen.resources}
    assert len(processes) == 1


def test_what_cannot_be_sent_is_refused(agent: Agent) -> None:
    untraced = evaluation_id(agent(*EVALUATE, "--trace_level=NO_TRACE"))
    address = f"--tracer_address={HOST}"

    assert "has no trace" in agent("trace", "send", untraced, address).error
    assert "give one with --tracer_address" in agent("trace", "send", untraced).error
    for url in ("jaeger", "ftp://jaeger", "http://me:secret@jaeger", "http://jaeger:port"):
        refused = agent("trace", "send", untraced, address, f"--trace_url={url}")
        assert refused.code == 2
        assert "secret" not in refused.error


def test_the_link_to_a_trace_is_where_it_is_said_to_be(agent: Agent) -> None:
    seen = Seen()
    with zipkin(seen) as port:
        collector = f"--tracer_address=zipkin://{HOST}:{port}"
        told = agent(*EVALUATE, collector, "--trace_url=https://grafana.lab/explore?trace={trace_id}&kind=1")
        default = agent(*EVALUATE, collector)

    trace_ids = list(dict.fromkeys(span.trace_id for span in seen.spans.values()))
    assert f"  https://grafana.lab/explore?trace={trace_ids[0]}&kind=1" in told.stdout
    assert f"  http://{HOST}:{port}/zipkin/traces/{trace_ids[1]}" in default.stdout
