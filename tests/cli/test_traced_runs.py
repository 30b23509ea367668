"""A traced run as a collector receives it, over each protocol, and the cost of a failing collector."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from inferometer.agent.tracing.exporting import GRACE_S
from inferometer.evaluators.kinds.batches.job import EvaluationTrace
from tests.cli.conftest import Agent, Answer
from tests.integration.trace_collectors import COLLECTORS, HOST, Seen, hanging, otlp_grpc

EVALUATE = ("predict", "dataset", "--batch_size=16", "--num_file_parts=3", "--trace_level=FRAMEWORK_TRACE")
LENIENCE_S = 1.5
"""What a busy machine may add to the second that a collector is waited for."""
KINDS = pytest.mark.parametrize("scheme", COLLECTORS, ids=lambda scheme: scheme.strip(":/") or "grpc")


def stored(agent: Agent, answer: Answer) -> list[Mapping[str, Any]]:
    """The spans that the store keeps of the evaluation."""
    exported = agent("trace", "export", answer.figure("evaluation"), "-f", "otlp-json").stdout
    found: list[Mapping[str, Any]] = json.loads(exported)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    return found


def value_of(attribute: Mapping[str, Any], *, exact: bool) -> object:
    """The value of an attribute in OTLP's JSON; Jaeger has lists as JSON."""
    [(kind, value)] = attribute.items()
    if kind == "arrayValue":
        values = tuple(value_of(each, exact=exact) for each in value.get("values", ()))
        return values if exact else json.dumps(values)
    return int(value) if kind == "intValue" else value


def as_tags(attributes: Mapping[str, object]) -> dict[str, object]:
    """Attributes as Zipkin has them; the host is with those of the resource there."""
    given = {key: value for key, value in attributes.items() if key != "host.name"}
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}


def microseconds(text: str | int) -> int:
    return (int(text) + 500) // 1000


@KINDS
def test_a_collector_sees_the_tree_of_a_run_that_the_store_keeps(agent: Agent, scheme: str) -> None:
    seen = Seen()
    with COLLECTORS[scheme](seen) as port:
        answer = agent(*EVALUATE, f"--tracer_address={scheme}{HOST}:{port}")
        kept = stored(agent, answer)
        seen.wait_for(lambda: len(seen.spans) >= len(kept))

    assert answer.code == 0
    assert len(kept) > 3 * 16 * 2
    exact, is_zipkin = not scheme.startswith(("jaeger", "zipkin")), scheme.startswith("zipkin")
    wanted, found = {}, {}
    for span in kept:
        started, ended = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        times = (
            (started, ended - started) if exact else (microseconds(started), microseconds(ended - started))
        )
        times = (times[0], max(times[1], int(is_zipkin)))
        attributes = {pair["key"]: value_of(pair["value"], exact=exact) for pair in span["attributes"]}
        attributes = as_tags(attributes) if is_zipkin else attributes
        parent_id = int(span.get("parentSpanId") or "0", 16)
        wanted[int(span["spanId"], 16)] = (span["name"], parent_id, *times, attributes)
    for span_id, seen_span in seen.spans.items():
        times = (seen_span.start_ns, seen_span.duration_ns)
        times = times if exact else (microseconds(times[0]), microseconds(times[1]))
        told = as_tags(seen_span.attributes) if is_zipkin else seen_span.attributes
        found[span_id] = (seen_span.name, seen_span.parent_id, *times, told)
    assert found == wanted

    url = answer.figure("trace").split()[-1]
    assert {span.trace_id for span in seen.spans.values()} == {url.rpartition("/")[2]}
    assert url in agent("info", "evaluation", "show", answer.figure("evaluation")).stdout
    names = {span_id: span.name for span_id, span in seen.spans.items()} | {0: ""}
    edges = Counter((names[int(span.parent_id)], span.name) for span in seen.spans.values())
    assert edges["", "evaluation"] == edges["evaluation", "measure"] == edges["open", "load"] == 1
    assert edges["measure", "predict_step"] == edges["predict_step", "predict"] - 1 == 3
    layers = [span for span in seen.spans.values() if "inferometer.layer_index" in span.attributes]
    assert layers
    assert {names[int(span.parent_id)] for span in layers} == {"predict"}


@pytest.fixture
def waited_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each run waited for its collector at the end."""
    found: list[float] = []
    close = EvaluationTrace.close

    def timed(trace: EvaluationTrace) -> None:
        started_s = time.monotonic()
        close(trace)
        found.append(time.monotonic() - started_s)

    monkeypatch.setattr(EvaluationTrace, "close", timed)
    return found


@pytest.mark.parametrize("scheme", ["", "http://", "jaeger+http://"], ids=["grpc", "http", "jaeger"])
def test_a_collector_that_hangs_costs_a_second(agent: Agent, waited_s: list[float], scheme: str) -> None:
    with hanging() as port:
        answer = agent(*EVALUATE, f"--tracer_address={scheme}{HOST}:{port}")

    assert answer.code == 0
    kept = len(stored(agent, answer))
    assert f"{kept} of {kept} spans were not delivered to" in answer.stderr.replace(",", "")
    [waited] = waited_s
    assert waited <= GRACE_S + LENIENCE_S


@pytest.mark.parametrize("scheme", ["", "http://", "jaeger+http://"], ids=["grpc", "http", "jaeger"])
def test_a_collector_that_refuses_costs_a_second(agent: Agent, waited_s: list[float], scheme: str) -> None:
    answer = agent(*EVALUATE, f"--tracer_address={scheme}{HOST}:9")

    assert answer.code == 0
    assert re.search(r"(\d+) of \1 spans were not delivered to", answer.stderr.replace(",", ""))
    assert waited_s[0] <= GRACE_S + LENIENCE_S


def test_a_collector_that_dies_in_mid_run_costs_a_second_and_what_it_took_counts(
    agent: Agent, waited_s: list[float]
) -> None:
    with ExitStack() as collector:

        def die(number: int) -> object:
            if number == 1:
                dying.start()
                dying.join()
            return None

        dying = threading.Thread(target=collector.close)
        port = collector.enter_context(otlp_grpc(Seen(die)))
        answer = agent(*EVALUATE, "--num_file_parts=30", f"--tracer_address={HOST}:{port}")

    assert answer.code == 0
    match = re.search(r"(\d+) of (\d+) spans were not delivered to", answer.stderr.replace(",", ""))
    assert match
    undelivered, every = map(int, match.groups())
    assert every - undelivered == 512
    assert waited_s[0] <= GRACE_S + LENIENCE_S
