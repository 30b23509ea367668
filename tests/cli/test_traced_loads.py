"""Queries under load in traces, from the command line: in this process, on an agent and on a server."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from tests.cli.conftest import Agent, Answer, served
from tests.integration.trace_collectors import HOST, Seen, SeenSpan, otlp_grpc

LOAD = ("--framework_name=ONNXRuntime", "--synthetic", "--allow_invalid", "--warmup=2")
WORKLOAD = ("predict", "workload", *LOAD, "--concurrency=1", "--min_queries=20", "--min_duration=0")


def paths(spans: dict[int, SeenSpan]) -> Counter[str]:
    """How often there is a span below which others, by their names."""

    def above(span: SeenSpan) -> list[str]:
        parent = spans.get(span.parent_id)
        return [*above(parent), span.name] if parent else [span.name]

    return Counter("/".join(above(span)) for span in spans.values())


def kept(agent: Agent, told: Answer) -> Counter[str]:
    """How often the store has a span of a name."""
    exported = agent("trace", "export", told.figure("evaluation"), "-f", "otlp-json").stdout
    [of_resource] = json.loads(exported)["resourceSpans"]
    return Counter(str(span["name"]) for span in of_resource["scopeSpans"][0]["spans"])


def test_queries_in_this_process_are_sent_to_a_collector_and_kept(agent: Agent) -> None:
    seen = Seen()
    with otlp_grpc(seen) as port:
        told = agent(*WORKLOAD, f"--tracer_address={HOST}:{port}", "--trace_sample=1")

    assert told.code == 0
    query = "evaluation/run/query"
    assert paths(seen.spans) == {
        "evaluation": 1,
        "evaluation/run": 1,
        query: 20,
        f"{query}/queue": 20,
        f"{query}/batch": 20,
        f"{query}/batch/predict": 20,
    }
    assert re.search(rf"^trace +82 spans  http://{HOST}:16686/trace/", told.stdout, re.MULTILINE)
    assert kept(agent, told) == Counter(span.name for span in seen.spans.values())
    for span in seen.spans.values():
        if span.parent_id in seen.spans:
            parent = seen.spans[span.parent_id]
            assert parent.start_ns <= span.start_ns
            assert span.start_ns + span.duration_ns <= parent.start_ns + parent.duration_ns


@pytest.mark.parametrize(
    ("place", "method"),
    [
        ("{}", "inferometer.v1.PredictService/Predict"),
        ("kserve://{}/DigitsCNN@ONNXRuntime", "inference.GRPCInferenceService/ModelInfer"),
    ],
)
def test_a_query_on_an_agent_goes_on_there(agent: Agent, place: str, method: str) -> None:
    seen = Seen()
    with otlp_grpc(seen) as port, served(f"--tracer_address={HOST}:{port}") as (address, process):
        tracing = (f"--tracer_address={HOST}:{port}", "--trace_sample=0.3")
        told = agent(*WORKLOAD, f"--agent={place.format(address)}", *tracing)
        process.terminate()
        assert process.wait(timeout=60) == 0

    assert told.code == 0
    found = paths(seen.spans)
    way = f"evaluation/run/query/{method}/{method}"
    count = found["evaluation/run/query"]
    assert 4 <= count <= 8
    assert found[way] == found[f"{way}/queue"] == found[f"{way}/batch/predict"] == count
    roles = Counter((span.role, span.resource["service.name"]) for span in seen.spans.values())
    assert roles["client", "inferometer"] == roles["server", "inferometer-agent"] == count
    assert len({span.trace_id for span in seen.spans.values()}) == 1


def test_the_probes_of_a_search_are_runs_of_one_trace(agent: Agent) -> None:
    search = ("--initial_qps=20", "--min_duration=0.1", "--min_queries=5", "--time_budget=2", "--force")
    told = agent("predict", "max-qps", *LOAD, *search, "--trace_sample=0.5")

    names = kept(agent, told)
    assert names["evaluation"] == 1
    assert names["run"] >= 1
    assert names["query"] >= 2


def test_without_a_collector_no_query_is_traced(agent: Agent) -> None:
    told = agent(*WORKLOAD)
    assert "trace " not in told.stdout
    assert "has no trace" in agent("trace", "export", told.figure("evaluation")).error


@pytest.mark.parametrize("option", ["--trace_sample=0.1", "--tracer_address=collector"])
def test_a_scenario_of_loadgen_cannot_be_traced(agent: Agent, option: str) -> None:
    refused = agent("predict", "workload", *LOAD, "--scenario=offline", option)
    assert refused.code == 2
    assert "scenario has LoadGen send the queries; leave out trac" in refused.error


def test_a_share_is_at_most_all(agent: Agent) -> None:
    assert agent(*WORKLOAD, "--trace_sample=2").code == 2
