"""The Prometheus metrics of a served agent, over a socket."""

import re
import urllib.request
from pathlib import Path

import grpc
import pytest
from agent_client import TIMEOUT_S, Client, as_stream, outcome, v1_request
from fake_framework import wait_for
from faulty_framework import faulty_registry, write_faulty_manifests
from prometheus_client.parser import text_string_to_metric_families

from inferometer.agent.server.metrics import Metrics
from inferometer.agent.serving.prediction_watch import AgentLoad
from inferometer.manifests.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
V2 = "inference.GRPCInferenceService"


@pytest.fixture
def agent(start_agent, manifest_folder):
    write_faulty_manifests(manifest_folder)
    return start_agent(registry=faulty_registry(), metrics_port=0, predict_timeout_s=2.0)


@pytest.fixture
def client(agent, channel_to):
    return Client(channel_to(agent.address))


class Scrape:
    """The samples of one scrape."""

    def __init__(self, url):
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            families = list(text_string_to_metric_families(answer.read().decode()))
        self.families = {family.name: family for family in families}
        self._samples = {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}

    def value(self, sample, **labels):
        """The value of a sample; None where there is none."""
        return self._samples.get((sample, frozenset(labels.items())))


def test_refused_calls_are_counted_by_the_names_of_the_agents_methods_only(start_agent, channel_to):
    agent = start_agent(secret="open sesame", metrics_port=0)
    names = (
        "inferometer.v1.PredictService/Predict",
        "inferometer.v1.RegistryService/Status",
        f"{V2}/ModelInfer",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    )
    channel = channel_to(agent.address)
    for name in (*names, "made/up", "made/up/too"):
        with pytest.raises(grpc.RpcError) as error:
            channel.unary_unary(f"/{name}")(b"", timeout=TIMEOUT_S)
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    Client(channel).checked()

    def counts():
        samples = Scrape(agent.metrics_url).families["inferometer_requests"].samples
        return {each.labels["method"]: each.value for each in samples if each.name.endswith("_total")}

    wanted = {**dict.fromkeys(names, 1), "unknown": 2, "grpc.health.v1.Health/Check": 1}
    wait_for(lambda: counts() == wanted)


def test_calls_are_counted_by_method_model_and_code(agent, client):
    client.infer("Echo")
    client.infer("Echo")
    outcome(client, "Failing")
    outcome(client, "NoSuchModel")
    id_ = client.open("Mean")
    client.v1.Predict(v1_request(id_), timeout=TIMEOUT_S)
    list(client.v1.PredictStream(as_stream([v1_request(id_), v1_request(id_)]), timeout=TIMEOUT_S))
    client.checked()

    def value(method, model, code="OK"):
        scrape = Scrape(agent.metrics_url)
        return scrape.value("inferometer_requests_total", method=method, model=model, code=code)

    wait_for(lambda: value("grpc.health.v1.Health/Check", "") == 1)
    assert value(f"{V2}/ModelInfer", "Echo") == 2
    assert value(f"{V2}/ModelInfer", "Failing", "INTERNAL") == 1
    assert value(f"{V2}/ModelInfer", "", "NOT_FOUND") == 1
    assert value("inferometer.v1.PredictService/Open", "Mean") == 1
    assert value("inferometer.v1.PredictService/Predict", "Mean") == 1
    assert value("inferometer.v1.PredictService/PredictStream", "Mean") == 1
    scrape = Scrape(agent.metrics_url)
    labels = {"method": f"{V2}/ModelInfer", "model": "Echo"}
    assert scrape.value("inferometer_request_duration_seconds_count", **labels) == 2
    assert 0 < scrape.value("inferometer_request_duration_seconds_sum", **labels) < TIMEOUT_S
    assert scrape.value("inferometer_requests_in_flight", method=f"{V2}/ModelInfer") == 0
    assert scrape.value("inferometer_prediction_duration_seconds_count", model="Mean") == 3
    assert scrape.value("inferometer_batch_inputs_sum", model="Mean") == 3
    assert (
        scrape.value("inferometer_queue_duration_seconds_count", model="Mean") == 1
    )  # no stream waits there
    assert scrape.value("inferometer_sessions_open") == 1
    assert scrape.value("inferometer_serving") == 1
    loaded = {"version": "1.0", "framework": "Fake", "device": "cpu"}
    assert scrape.value("inferometer_models_loaded", model="Mean", **loaded) == 1
    assert scrape.value("inferometer_queue_requests", model="Mean") == 0
    assert scrape.value("process_resident_memory_bytes") > 1e7


def test_calls_under_way_and_requests_that_wait_are_told(agent, client, manifest_folder):
    first = client.v1.Predict.future(v1_request(client.open("Waiting")), timeout=TIMEOUT_S)
    wait_for((manifest_folder / "begun").exists)
    labels = {"method": "inferometer.v1.PredictService/Predict"}
    assert Scrape(agent.metrics_url).value("inferometer_requests_in_flight", **labels) == 1
    (manifest_folder / "go").touch()
    first.result(TIMEOUT_S)
    wait_for(lambda: Scrape(agent.metrics_url).value("inferometer_requests_in_flight", **labels) == 0)


def test_failures_hangs_and_a_lost_device_are_counted(agent, client, manifest_folder):
    for model in ("OutOfMemory", "OutOfGpuMemory", "TooFewRows", "NoArray", "Broken", "LostDevice"):
        outcome(client, model)
    outcome(client, "Hanging")
    wait_for(lambda: Scrape(agent.metrics_url).value("inferometer_predictions_hanging") == 1)
    scrape = Scrape(agent.metrics_url)
    for model, kind in (
        ("OutOfMemory", "out_of_memory"),
        ("OutOfGpuMemory", "out_of_memory"),
        ("NoArray", "framework"),
        ("Broken", "fault"),
        ("LostDevice", "device_lost"),
    ):
        assert scrape.value("inferometer_prediction_failures_total", model=model, kind=kind) == 1
    assert scrape.value("inferometer_prediction_hangs_total", model="Hanging") == 1
    assert scrape.value("inferometer_serving") == 0
    (manifest_folder / "go").touch()
    wait_for(lambda: Scrape(agent.metrics_url).value("inferometer_predictions_hanging") == 0)


def test_names_that_a_client_makes_up_are_no_labels(agent, client):
    for number in range(20):
        outcome(client, f"made up {number}")
    text = urllib.request.urlopen(agent.metrics_url, timeout=TIMEOUT_S).read().decode()
    assert "made up" not in text


@pytest.mark.parametrize("secret", [None, "open sesame"])
def test_methods_that_a_client_makes_up_are_no_labels_and_not_in_the_log(
    start_agent, channel_to, caplog, secret
):
    caplog.set_level("DEBUG")
    agent = start_agent(metrics_port=0, secret=secret)
    channel = channel_to(agent.address)
    made_up = (
        "/made_up/INFO agent: all is well",
        "/made_up\nINFO forged/x",
        "/made_up\x1b[31m/x",
        "//made_up",
    )
    for path in (*made_up, *(f"/made_up/{number}" for number in range(20))):
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(path)(b"", timeout=TIMEOUT_S)

    def scraped():
        text = urllib.request.urlopen(agent.metrics_url, timeout=TIMEOUT_S).read().decode()
        counted = re.findall(r"^inferometer_requests_total{(.*)} (.*)", text, re.MULTILINE)
        assert "made_up" not in text
        assert "made_up" not in caplog.text
        assert "forged" not in caplog.text
        return counted

    if secret is None:
        assert scraped() == []
    else:
        wait_for(lambda: scraped() == [('code="UNAUTHENTICATED",method="unknown",model=""', "24.0")])


def test_port_of_another_program_is_refused_and_the_agents_is_given_back(start_agent):
    first = start_agent(metrics_port=0)
    port = int(re.search(r":(\d+)/", first.metrics_url)[1])
    with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port} for metrics"):
        start_agent(metrics_port=port)
    first.stop(0)
    again = start_agent(metrics_port=port)
    assert Scrape(again.metrics_url).value("inferometer_serving") == 1


def test_there_are_no_metrics_unless_asked_for(start_agent):
    assert start_agent().metrics_url is None


def test_page_of_the_documentation_names_every_metric():
    types = {
        f"{family.name}_total" if family.type == "counter" else family.name: family.type
        for family in Metrics(AgentLoad).registry.collect()
        if family.name.startswith("inferometer_")
    }
    page = (ROOT / "docs" / "observing.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `(inferometer_\w+)` \| (\w+) \|", page, re.MULTILINE)) == types
