"""``--agent kserve://…``: every evaluator on a model that ``agent serve`` offers over the V2 protocol."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from certificates import Authority
from PIL import Image

from inferometer.agent.hardware.environment import DeviceKind
from inferometer.agent.inference.registry import Registry
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.server.tls import ServerTls
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement, RateSearchMeasurement
from inferometer.evaluators.load.queries import Outcome
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_store
from inferometer.manifests.catalog import Catalog
from tests.cli.conftest import Agent, Answer
from tests.cli.conftest import served as served_over_tls

SECRET = "open sesame"
ONNX = "DigitsCNN@ONNXRuntime"
SEARCH = (
    *("predict", "max-qps", "--synthetic", "--latency_bound=200", "--initial_qps=50", "--time_budget=2"),
    *("--min_duration=0.1", "--min_queries=10", "--allow_invalid"),
)
SERVER_TIMES = ("queue_ns", "predict_ns")


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with AgentServer(Catalog(), Registry(), ServerOptions(port=0)) as server:
        yield f"kserve://{server.address}"


def kept(answer: Answer) -> Evaluation:
    store = open_store(None, "inferometer", Path(os.environ["AGENT_DATA_DIR"]))
    try:
        [found] = store.find(EvaluationFilter(evaluation_id=answer.figure("evaluation")))
    finally:
        store.close()
    return found


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet", "ONNXRuntime"])
def test_a_dataset_gives_the_accuracy_of_this_process_and_says_where_it_ran(
    agent: Agent, served: str, framework: str
) -> None:
    here = agent("predict", "dataset", "--num_file_parts=-1", f"--framework_name={framework}")

    answer = agent("predict", "dataset", "--num_file_parts=-1", f"--agent={served}/DigitsCNN@{framework}")

    assert answer.code == 0, answer.stderr
    assert f"by the manifest of DigitsCNN 1.0 for {framework}" in answer.stderr
    assert [answer.figure(name) for name in ("top-1", "top-5")] == [
        here.figure(name) for name in ("top-1", "top-5")
    ]
    assert "the network is in it" in answer.stdout
    evaluation = kept(answer)
    assert evaluation.system.agent == f"{served}/DigitsCNN@{framework}"
    assert evaluation.system.manifest.framework.name == "inferometer"
    assert evaluation.system.device.kind is DeviceKind.REMOTE
    assert not evaluation.system.environment.is_known
    assert list(evaluation.system.environment.frameworks) == [framework]


def test_reports_and_comparisons_take_an_evaluation_whose_machine_is_not_known(
    agent: Agent, served: str
) -> None:
    here = agent("predict", "dataset", "--num_file_parts=-1").figure("evaluation")
    there = agent("predict", "dataset", f"--agent={served}", "--trace_level=FULL_TRACE").figure("evaluation")

    shown = agent("info", "evaluation", "show", there).stdout
    document = json.loads(agent("info", "evaluation", "show", there, "-f", "json").stdout)
    rows = agent("info", "evaluation", "latency", "-f", "csv").rows
    compared = agent("compare", here, there, "--threshold=10")
    exported = agent("trace", "export", there, "--format=otlp-json")

    assert "host          not known; the server runs the model in PyTorch" in shown
    assert "under the framework's profiler" not in shown
    assert (document["device"], document["usable_cores"], document["memory_bytes"]) == ("remote", None, None)
    assert {row["framework_name"] for row in rows} == {"inferometer", "PyTorch"}
    assert compared.code in {0, 1}
    assert "host: " in compared.stderr
    assert "not known" in compared.stderr
    [of_resource] = json.loads(exported.stdout)["resourceSpans"]  # this process, which recorded the spans
    pid = {"key": "process.pid", "value": {"intValue": str(os.getpid())}}
    assert pid in of_resource["resource"]["attributes"]


def test_images_of_a_list_are_read_and_preprocessed_here(agent: Agent, served: str, tmp_path: Path) -> None:
    Image.fromarray(np.zeros((20, 20), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "list.txt").write_text("a.png\nmissing.png\n")

    answer = agent(
        *("predict", "urls", f"--urls_file_path={tmp_path / 'list.txt'}", f"--agent={served}", "-b", "2")
    )

    assert answer.code == 1
    assert "missing.png" in answer.stderr
    measurement = kept(answer).measurement
    assert isinstance(measurement, BatchMeasurement)
    assert measurement.times.sizes.tolist() == [1]


@pytest.mark.parametrize("include_preprocess", [(), ("--include_preprocess",)], ids=["prepared", "read"])
def test_a_workload_is_answered_and_has_the_times_of_the_server(
    agent: Agent, served: str, include_preprocess: tuple[str, ...]
) -> None:
    answer = agent(
        *("predict", "workload", f"--agent={served}", "--initial_qps=40", "--min_duration=0.5"),
        *("--min_queries=20", "--warmup=2", "--allow_invalid", *include_preprocess),
    )

    assert answer.code == 0, answer.stderr
    assert kept(answer).system.agent == f"{served}/DigitsCNN"
    measurement = kept(answer).measurement
    assert isinstance(measurement, LoadMeasurement)
    run = measurement.run
    assert run.queries.count(Outcome.ANSWERED) == len(run.queries) >= 20
    took_ns = run.queries.done_ns - run.queries.sent_ns
    for name in SERVER_TIMES:
        times = getattr(run.queries, name)
        assert (times >= 0).all()
        assert (times <= took_ns).all()


def test_a_workload_tells_where_its_time_went(agent: Agent, served: str) -> None:
    load = ("predict", "workload", f"--agent={served}/{ONNX}", "--initial_qps=40", "--min_duration=0.5")
    load += ("--min_queries=20", "--allow_invalid")
    read, unread = agent(*load), agent(*load, "--server_statistics_hz=0")

    assert (read.code, unread.code) == (0, 0), (read.stderr, unread.stderr)
    assert read.figure("parts").startswith("mean ")
    assert "parts " not in unread.stdout
    rows = agent("info", "evaluation", "parts", f"--id={read.figure('evaluation')}", "-f", "csv").rows
    assert [row["source"] for row in rows if row["figure"] == "mean"] == ["V2", "answers"]
    parts = ("lag", "network", "queue", "input", "compute", "output", "rest")
    for row in rows:
        known = sum(float(row[f"{name}_ms"] or 0) for name in parts)
        assert known == pytest.approx(float(row["latency_ms"]))
    measured, bare = kept(read).measurement, kept(unread).measurement
    assert isinstance(measured, LoadMeasurement)
    assert isinstance(bare, LoadMeasurement)
    [series] = measured.run.server
    assert series.growth("requests").sum() == len(measured.run.queries)
    assert bare.run.server == ()
    shown = json.loads(agent("info", "evaluation", "show", read.figure("evaluation"), "-f", "json").stdout)
    assert len(shown["load"]["parts"]) == len(rows)


def test_each_probe_of_a_search_has_the_statistics_of_the_server(agent: Agent, served: str) -> None:
    answer = agent(*SEARCH, f"--agent={served}")

    assert answer.code == 0, answer.stderr
    assert "queries/s at p99 <= 200 ms" in answer.figure("max QPS")
    search = kept(answer).measurement
    assert isinstance(search, RateSearchMeasurement)
    for probe in search.probes:
        [series] = probe.server
        assert series.growth("requests").sum() > 0
        assert series.at_ns[0] < 0 < series.at_ns[-1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--metrics_url=ftp://a/metrics",), 'metrics_url "ftp://a/metrics" is not http://HOST:PORT/metrics'),
        (("--metrics_url=http://a:1/m,b",), 'metrics_url "b" is not http://HOST:PORT/metrics'),
        (("--metrics_url=http://user:word@a:1/m",), 'metrics_url "a:1/m" is not'),
        (("--metrics_url=http://a:1/m", "--server_statistics_hz=0"), "reads no metrics; leave out one of"),
        (("--metrics_url=http://a:1/m", "--scenario=server"), "leave out metrics_url"),
        (("--server_statistics_hz=101",), "101"),
        (("--server_statistics_hz=nan",), "nan"),
    ],
)
def test_statistics_that_cannot_be_read_are_refused_in_one_line(
    agent: Agent, options: tuple[str, ...], said: str
) -> None:
    answer = agent("predict", "workload", *options)

    assert (answer.code, said in answer.error) == (2, True), answer.stderr


def test_a_framework_that_is_not_installed_is_not_needed(agent: Agent, served: str, tmp_path: Path) -> None:
    text = Path("manifests/builtin/models/DigitsCNN/pytorch.yml").read_text(encoding="utf-8")
    assert "name: PyTorch" in text
    mine = text.replace("name: PyTorch", "name: Elsewhere").replace("name: DigitsCNN", "name: MyDigits")
    (tmp_path / "mine.yml").write_text(mine, encoding="utf-8")

    answer = agent(
        *("predict", "dataset", "--num_file_parts=-1", f"--manifests={tmp_path}", "--model_name=MyDigits"),
        f"--agent={served}/DigitsCNN",
    )

    assert answer.code == 0, answer.stderr
    assert "by the manifest of MyDigits 1.0 for Elsewhere" in answer.stderr
    assert answer.figure("top-1").startswith("0.99")


def test_a_server_with_a_secret_is_given_it(agent: Agent) -> None:
    options = ServerOptions(port=0, secret=SECRET)
    with AgentServer(Catalog(), Registry(), options) as server:
        to_it = f"--agent=kserve://{server.address}"
        assert agent("predict", "dataset", "--num_file_parts=-1", to_it, f"--secret={SECRET}").code == 0
        refused = agent("predict", "dataset", "--num_file_parts=-1", to_it, "--secret=other")

    assert refused.code == 6
    assert "a secret is given with --secret" in refused.error
    assert SECRET not in refused.error


def test_tls_is_spoken_where_the_address_or_an_option_says_so(agent: Agent, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("127.0.0.1")
    trusting = f"--tls_ca={authority.ca}"
    with served_over_tls(f"--tls_cert={files.cert}", f"--tls_key={files.key}") as (address, _):
        done = agent(
            "predict", "dataset", "--num_file_parts=-1", f"--agent=kserves://{address}/{ONNX}", trusting
        )
        by_option = agent(
            "predict", "dataset", "--num_file_parts=-1", f"--agent=kserve://{address}/{ONNX}", trusting
        )
        untrusted = agent("predict", "dataset", "--num_file_parts=-1", f"--agent=kserves://{address}")
        plain = agent("predict", "dataset", "--num_file_parts=-1", f"--agent=kserve://{address}")

    assert done.code == by_option.code == 0, done.stderr + by_option.stderr
    assert kept(done).system.agent == kept(by_option).system.agent == f"kserves://{address}/{ONNX}"
    assert (untrusted.code, "--tls_ca" in untrusted.error) == (6, True), untrusted.stderr
    assert (plain.code, "use kserves://" in plain.error) == (6, True), plain.stderr


@pytest.fixture(scope="module")
def over_http() -> Iterator[str]:
    with AgentServer(Catalog(), Registry(), ServerOptions(port=0, http_port=0, secret=SECRET)) as server:
        yield f"kserve+{server.http_url}"


def test_a_server_over_http_is_measured_as_one_over_grpc(agent: Agent, over_http: str) -> None:
    to_it = (f"--agent={over_http}", f"--secret={SECRET}")
    dataset = agent("predict", "dataset", "--num_file_parts=-1", *to_it)
    load = agent(
        *("predict", "workload", *to_it, "--initial_qps=40", "--min_duration=0.5"),
        *("--min_queries=20", "--warmup=2", "--allow_invalid", "--include_preprocess"),
    )
    found = agent(*SEARCH, *to_it)

    assert [answer.code for answer in (dataset, load, found)] == [0, 0, 0], load.stderr
    assert dataset.figure("top-1").startswith("0.99")
    assert kept(dataset).system.agent == f"{over_http}/DigitsCNN"
    measurement = kept(load).measurement
    assert isinstance(measurement, LoadMeasurement)
    queries = measurement.run.queries
    assert queries.count(Outcome.ANSWERED) == len(queries) >= 20
    took_ns = queries.done_ns - queries.sent_ns
    for name in SERVER_TIMES:
        assert ((getattr(queries, name) >= 0) & (getattr(queries, name) <= took_ns)).all()


def test_over_http_the_secret_and_the_port_are_asked_for_in_one_line(agent: Agent, over_http: str) -> None:
    refused = agent("predict", "dataset", "--num_file_parts=-1", f"--agent={over_http}", "--secret=other")
    secure = over_http.replace("http:", "https:")
    no_tls = agent("predict", "dataset", "--num_file_parts=-1", f"--agent={secure}")

    assert (refused.code, no_tls.code) == (6, 6)
    assert "a secret is given with --secret" in refused.error
    assert "does not speak TLS; leave out kserve+https://" in no_tls.error


def test_tls_over_http_is_that_over_grpc(agent: Agent, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("127.0.0.1")
    tls = ServerTls(files.cert, files.key, authority.ca)
    shown = (f"--tls_cert={files.cert}", f"--tls_key={files.key}")
    trusting = f"--tls_ca={authority.ca}"
    with AgentServer(Catalog(), Registry(), ServerOptions(port=0, http_port=0, tls=tls)) as server:
        secure = f"kserve+{server.http_url}/{ONNX}"
        plain = secure.replace("https:", "http:")
        answers = [
            agent("predict", "dataset", "--num_file_parts=-1", f"--agent={address}", *options)
            for address, options in (
                (secure, (trusting, *shown)),
                (plain, (trusting, *shown)),
                (secure, shown),
                (secure, (trusting,)),
                (plain, ()),
            )
        ]
        load = agent(
            *("predict", "workload", f"--agent={secure}", trusting, *shown, "--initial_qps=40"),
            *("--min_duration=0.3", "--min_queries=10", "--warmup=2", "--allow_invalid"),
        )

    assert [answer.code for answer in answers] == [0, 0, 6, 6, 6], [each.stderr for each in answers]
    assert load.code == 0, load.stderr
    assert kept(answers[1]).system.agent == secure
    _, _, untrusted, unknown, clear = answers
    assert "--tls_ca" in untrusted.error
    assert "requires a certificate that it trusts" in unknown.error
    assert "use kserve+https://" in clear.error


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [
        (("--agent={served}/Nope",), 2, 'model "Nope": not found: unknown model "Nope"'),
        (("--agent={served}", "--model_name=Nope"), 2, 'unknown model "Nope"'),
        (("--agent=kserve://here",), 2, 'agent address "kserve://here" is not kserve://host:port'),
        (("--agent={served},{served}",), 2, "is not kserve://host:port"),
        (("--agent={served}", "--gpu"), 2, "leave out --gpu and --threads"),
        (("--agent=kserve://127.0.0.1:1",), 6, "cannot be reached: connection refused"),
        (
            ("--agent={served}/DigitsCNN", "--model_name=ResNet50", "--dataset_name=digits_validation"),
            2,
            'input "data": has shape [-1, 1, 16, 16] at the server, but [-1, 3, 224, 224] in the manifest of',
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    agent: Agent, served: str, wrong: tuple[str, ...], code: int, said: str
) -> None:
    answer = agent(
        "predict", "dataset", "--num_file_parts=-1", *(option.format(served=served) for option in wrong)
    )

    assert (answer.code, said in answer.error) == (code, True), answer.stderr
