"""Queries under load in traces, from the command line: in this process, on an agent and on a server."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.conftest import Agent, Answer, served
from tests.integration.generation_truth import serving
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


GENERATE = (
    *("measure", "generation", "--concurrency=1", "--max_queries=4", "--warmup=1", "--trace_sample=1"),
    *("--output_tokens=5", "--prompt_tokens=40", "--ignore_eos", "--temperature=0.5", "--seed=7"),
)
OF_A_REQUEST = {"queue": 1, "prefill": 1, "step": 4, "sample": 5, "detokenize": 5}


def within(inner: SeenSpan, outer: SeenSpan) -> bool:
    return outer.start_ns <= inner.start_ns and (
        inner.start_ns + inner.duration_ns <= outer.start_ns + outer.duration_ns
    )


@pytest.mark.parametrize(
    ("endpoint", "operation", "prefix"),
    [("chat", "chat", "chatcmpl-"), ("completions", "text_completion", "cmpl-")],
)
def test_a_generated_answer_is_one_trace_through_client_and_server(
    agent: Agent, endpoint: str, operation: str, prefix: str
) -> None:
    seen = Seen()
    with otlp_grpc(seen) as port:
        collector = f"--tracer_address={HOST}:{port}"
        with served("--http_port=0", collector) as (_, process):
            assert process.stdout is not None
            http_port = process.stdout.readline().strip().rpartition(":")[2]
            at = f"--agent=openai+http://{HOST}:{http_port}"
            told = agent(*GENERATE, at, f"--endpoint={endpoint}", collector)
            process.terminate()
            assert process.wait(timeout=60) == 0

    assert told.code == 0, told.stderr
    name, path = f"{operation} ToyLlama", f"/v1/{'chat/' * (endpoint == 'chat')}completions"
    query = f"evaluation/run/query/{name}"
    way = f"{query}/POST {path}/{name}"
    below = {f"{way}/{part}": 4 * count for part, count in OF_A_REQUEST.items()}
    above = {"evaluation": 1, "evaluation/run": 1, "evaluation/run/query": 4, query: 4}
    assert paths(seen.spans) == {**above, f"{query}/POST {path}": 4, way: 4, **below}
    assert len({span.trace_id for span in seen.spans.values()}) == 1
    for span in seen.spans.values():
        if (outer := seen.spans.get(span.parent_id)) and outer.resource == span.resource:
            assert within(span, outer), (span, outer)

    [client, *_] = (span for span in seen.spans.values() if span.role == "client")
    [server] = (span for span in seen.spans.values() if seen.spans.get(span.parent_id) == client)
    [engine] = (span for span in seen.spans.values() if seen.spans.get(span.parent_id) == server)
    assert (server.role, engine.role) == ("server", "internal")
    common = {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": "ToyLlama",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.response.model": "ToyLlama",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.output_tokens": 5,
    }
    for span in (client, engine):
        assert {key: span.attributes.get(key) for key in common} == common
        assert span.attributes["gen_ai.response.id"].startswith(prefix)
    assert client.attributes["gen_ai.response.id"] == engine.attributes["gen_ai.response.id"]
    assert client.attributes["gen_ai.provider.name"] == "openai"
    assert client.attributes["server.address"] == HOST
    assert client.attributes["server.port"] == int(http_port)
    assert kept(agent, told)["query"] == 4


def test_a_generated_answer_in_this_process_has_the_spans_of_its_parts(agent: Agent) -> None:
    told = agent(*GENERATE)

    assert told.code == 0, told.stderr
    parts = {name: 4 * count for name, count in OF_A_REQUEST.items()}
    assert kept(agent, told) == {"evaluation": 1, "run": 1, "query": 4, "chat ToyLlama": 4, **parts}
    assert "trace_sample" not in agent("info", "evaluation", "show", told.figure("evaluation")).stdout


def test_the_collector_of_the_configuration_receives_generated_answers(agent: Agent, tmp_path: Path) -> None:
    seen, configuration = Seen(), tmp_path / "configuration.yml"
    with otlp_grpc(seen) as port:
        configuration.write_text(f"tracer: {{address: '{HOST}:{port}', url: 'http://viewer'}}")
        told = agent(f"--config={configuration}", *GENERATE)

    assert told.code == 0, told.stderr
    assert [span.name for span in seen.spans.values()].count("chat ToyLlama") == 4
    assert "http://viewer/trace/" in told.stdout


def test_an_answer_that_fails_is_an_error_in_its_trace(agent: Agent, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"  # which need no request to find their length
    prompts.write_text('{"prompt": "a b"}', encoding="utf-8")
    load = ("--concurrency=1", "--max_queries=4", "--warmup=1", "--trace_sample=1", f"--prompts={prompts}")
    seen = Seen()
    with otlp_grpc(seen) as port, serving(breaks="error", every=2) as server:
        at = f"--agent=openai+http://{server.address}"
        agent("measure", "generation", *load, at, f"--tracer_address={HOST}:{port}")

    calls = [span for span in seen.spans.values() if span.role == "client"]
    assert sorted(span.failed for span in calls) == [False, False, True, True]
    assert all(span.attributes.get("error.type") == ("failed" if span.failed else None) for span in calls)


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
