"""What Triton adds to requests, over HTTP: priorities, timeouts, strings, versions and the best classes."""

import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http as triton
from fake_framework import mean_scores, wait_for
from open_inference import TIMEOUT_S, images
from rest_client import Rest, binary_input, json_input
from test_open_inference import PRIORITIES
from test_open_inference_strings import MANIFEST as STRINGS_MANIFEST
from test_open_inference_strings import WORDS, write_graph
from test_open_inference_versions import MANIFEST as VERSIONS_MANIFEST
from test_open_inference_versions import VERSIONS

from inferometer.agent.inference.registry import Registry
from inferometer.agent.serving.served_models import ServingOptions, VersionPolicies

TWICE = [[word * 2 for word in row] for row in WORDS]


@pytest.fixture
def asking():
    """Asks an agent; its connections are closed in the end."""
    made = []

    def connect(agent):
        made.append(Rest(agent.http_url))
        return made[-1]

    yield connect
    for rest in made:
        rest.close()


@pytest.fixture(scope="module")
def strings(start_shared_agent, shared_folder):
    write_graph(shared_folder / "twice.onnx")
    text = STRINGS_MANIFEST.format(name="Twice", framework="ONNXRuntime")
    (shared_folder / "Twice.yml").write_text(text)
    return start_shared_agent(http_port=0, registry=Registry())


@pytest.fixture(scope="module")
def agent(start_shared_agent):
    return start_shared_agent(http_port=0, serving=ServingOptions(batching=PRIORITIES))


def test_requests_wait_by_the_policy_of_their_priority(start_agent, manifest_folder, asking):
    agent = start_agent(http_port=0, serving=ServingOptions(batching=PRIORITIES))

    def ask(**parameters):
        head = {"inputs": [json_input(images(1))], "parameters": parameters}
        return asking(agent).infer(head, model="Waiting")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask)
        wait_for((manifest_folder / "begun").exists)
        second = pool.submit(ask, priority=1, timeout=1)
        wait_for(lambda: agent.models.loaded[0].waiting == 1)
        full, late = ask(priority=1), ask()
        (manifest_folder / "go").touch()
        answers = [first.result(TIMEOUT_S), second.result(TIMEOUT_S)]

    assert [answer.status for answer in answers] == [200, 200]
    assert (full.status, "its queue of 1 requests of priority 1 is full" in full.error) == (503, True)
    assert (late.status, "timeout expired in the queue" in late.error) == (504, True)


@pytest.mark.parametrize("name", ["priority", "timeout"])
@pytest.mark.parametrize("value", ["high", True, -1, 0.5])
def test_a_parameter_that_is_no_number_is_refused(agent, asking, name, value):
    answer = asking(agent).infer({"inputs": [json_input(images(1))], "parameters": {name: value}})
    assert (answer.status, f"parameter {name} must be a whole number" in answer.error) == (400, True)


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary in", "JSON in"])
@pytest.mark.parametrize("binary_out", [True, False], ids=["binary out", "JSON out"])
def test_strings_come_back_in_every_form(strings, binary_in, binary_out):
    words = np.array(WORDS, object)
    tensor = triton.InferInput("words", list(words.shape), "BYTES")
    tensor.set_data_from_numpy(words, binary_data=binary_in)
    wanted = [triton.InferRequestedOutput("twice", binary_data=binary_out)]
    with triton.InferenceServerClient(strings.http_url.removeprefix("http://")) as client:
        answer = client.infer("Twice", [tensor], outputs=wanted)

    found = answer.as_numpy("twice")
    texts = [[each.decode() if isinstance(each, bytes) else each for each in row] for row in found.tolist()]
    assert texts == TWICE


def test_strings_in_json_are_json(strings, asking):
    ask = asking(strings)
    item = {"name": "words", "datatype": "BYTES", "shape": [3, 2], "data": WORDS}
    by_name = {each["name"]: each for each in ask.infer({"inputs": [item]}, model="Twice").json["outputs"]}
    assert by_name["twice"]["data"] == [word for row in TWICE for word in row]
    assert by_name["is_x"] == {
        "name": "is_x",
        "datatype": "BOOL",
        "shape": [3, 2],
        "data": [False] * 5 + [True],
    }


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (struct.pack("<I", 9) + b"short", "bytes"),
        (struct.pack("<I", 1) + b"\xff" + struct.pack("<I", 0), "UTF-8"),
        (struct.pack("<I", 0), "element"),
    ],
    ids=["too short", "no text", "too few"],
)
def test_strings_that_are_damaged_are_refused(strings, asking, content, part):
    item = {"name": "words", "datatype": "BYTES", "shape": [1, 2], "parameters": {}}
    item["parameters"]["binary_data_size"] = len(content)
    answer = asking(strings).infer({"inputs": [item]}, content, model="Twice")
    assert (answer.status, part in answer.error) == (400, True), answer.error


def test_a_body_that_is_the_one_input_cannot_be_of_strings(strings, asking):
    headers = {"Inference-Header-Content-Length": "0"}
    answer = asking(strings)("POST", "/v2/models/Twice/infer", b"\0" * 16, headers)
    assert (answer.status, "takes BYTES" in answer.error) == (400, True)


def test_versions_are_whole_numbers_in_every_answer(start_agent, manifest_folder, asking):
    for version, architecture in VERSIONS.items():
        text = VERSIONS_MANIFEST.format(version=version, architecture=architecture)
        (manifest_folder / f"several-{version}.yml").write_text(text)
    policy = ServingOptions(versions=VersionPolicies.parse(["all"]))
    ask = asking(start_agent(http_port=0, serving=policy))
    head = {"inputs": [json_input(images(1))]}
    for asked, version, output in (
        ("2.0", "2", "scores"),
        ("1001001000", "1001001000", "scores"),
        ("1", "1", "data"),
    ):
        path = f"/v2/models/Several/versions/{asked}"
        answer = ask("POST", f"{path}/infer", head).json
        assert (answer["model_version"], answer["outputs"][0]["name"]) == (version, output)
        assert ask.get(path).json["versions"] == ["3", "2", "1001001000", "1001000005", "1"]
        assert ask.get(f"{path}/config").json["parameters"]["version"] == {"string_value": version}
        [found] = ask.get(f"{path}/stats").json["model_stats"]
        assert (found["version"], found["inference_count"]) == (version, 1)
    assert ask.get("/v2/models/Several/versions/7/config").status == 404


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "INT8", "UINT16"])
def test_inputs_are_converted_where_nothing_is_lost(agent, asking, datatype):
    batch = np.arange(32, dtype=np.float32).reshape(2, 1, 4, 4)
    if datatype == "BF16":
        given = (batch.view(np.uint32) >> 16).astype(np.uint16)
    else:
        given = batch.astype({"FP16": np.float16, "INT8": np.int8, "UINT16": np.uint16}[datatype])
    answer = asking(agent).infer({"inputs": [binary_input(given, datatype)]}, given.tobytes())
    [output] = answer.json["outputs"]
    np.testing.assert_array_equal(np.reshape(output["data"], output["shape"]), mean_scores(batch))


def test_the_best_classes_come_as_texts_in_both_forms(agent, asking):
    ask, batch = asking(agent), images(2)
    answers = {}
    for binary in (False, True):
        wanted = [{"name": "scores", "parameters": {"classification": 2, "binary_data": binary}}]
        answers[binary] = ask.infer({"inputs": [json_input(batch)], "outputs": wanted})
        [output] = answers[binary].json["outputs"]
        assert (output["datatype"], output["shape"]) == ("BYTES", [2, 2])

    first = answers[False].json["outputs"][0]["data"][0]
    score, place, *_ = first.split(":")
    assert int(place) == mean_scores(batch)[0].argmax()
    assert float(score) == pytest.approx(mean_scores(batch)[0].max())
    content = answers[True].binary
    (length,) = struct.unpack_from("<I", content)
    assert content[4 : 4 + length].decode() == first
