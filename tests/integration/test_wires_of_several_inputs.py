"""A model of three inputs of dynamic length over every protocol: described, predicted, under load."""

import os
import time
from contextlib import ExitStack, closing

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from rest_client import HEADER_LENGTH, INFER, Rest
from tritonclient.utils import InferenceServerException, shared_memory

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.agent.preprocessing.inputs import Input, NamedTensors
from inferometer.agent.protocol.messages import encode_batch_request
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.kserve.opening import ModelChoice, open_kserve
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.evaluators.datasets.arrays import payload_of
from inferometer.evaluators.jobs.options import SharedMemoryUse
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.local_target import make_load_target
from inferometer.evaluators.load.queries import Outcome, QueryLog
from inferometer.evaluators.load.target import PreparedInputs, ReadInputs, synthetic_tensors
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, InputError
from inferometer.protos.inferometer.v1.predict_pb2 import PredictStreamRequest
from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub
from tests.token_models import NAMES, batch, expected, save_onnx

MANIFEST = """
name: {name}
framework: {{name: ONNXRuntime, version: "*"}}
inputs:
{inputs}
output: {{type: raw}}
model: {{graph_path: net.onnx}}
"""
INPUT = "  - {{type: tensor, parameters: {{dimensions: [-1], element_type: int64, input_layer: {}}}}}\n"
DEADLINE_S = 30.0
QUERIES = 24
LENGTHS = (3, 9, 5)
ROWS = tuple(batch(1, length, seed=length) for length in LENGTHS)
PREPARED = PreparedInputs(ROWS, "rows of several lengths")
READ = ReadInputs(tuple(map(payload_of, ROWS)), "the same, not preprocessed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tokens")
    save_onnx(made / "net.onnx")
    for name, names in (("Tokens", NAMES), ("Fewer", NAMES[:2]), ("Others", ("ids", *NAMES[1:]))):
        inputs = "".join(map(INPUT.format, names))
        (made / f"{name}.yml").write_text(MANIFEST.format(name=name, inputs=inputs))
    return made


@pytest.fixture(scope="module")
def agent(folder):
    options = ServerOptions(
        port=0, http_port=0, shared_memory=True, serving=ServingOptions(BatchingOptions(max_batch_size=4))
    )
    with AgentServer(Catalog([folder]), Registry(), options) as started:
        yield started


@pytest.fixture(scope="module")
def grpc_door(agent):
    with triton.InferenceServerClient(agent.address) as client:
        yield client


@pytest.fixture(scope="module")
def doors(agent, grpc_door):
    """Both clients, each with what makes its inputs."""
    with triton_http.InferenceServerClient(agent.http_url.partition("://")[2]) as client:
        yield {"grpc": (grpc_door, triton.InferInput), "http": (client, triton_http.InferInput)}


@pytest.fixture(params=["grpc", "http"])
def door(request, doors):
    return doors[request.param]


def given(make, arrays, names=None, datatype="INT64"):
    """The inputs of a request, in their order; ``names`` rename them."""
    made = []
    for name, array in zip(names or arrays, arrays.values(), strict=True):
        made.append(make(name, list(array.shape), datatype))
        made[-1].set_data_from_numpy(array)
    return made


def check(outputs, arrays):
    for name, right in expected(arrays).items():
        np.testing.assert_allclose(outputs(name), right, rtol=1e-5, atol=1e-6)


def test_all_inputs_and_outputs_are_described_with_their_dynamic_axes(grpc_door, doors):
    metadata = grpc_door.get_model_metadata("Tokens")
    inputs = [(each.name, each.datatype, list(each.shape)) for each in metadata.inputs]
    outputs = {each.name: (each.datatype, list(each.shape)) for each in metadata.outputs}
    assert inputs == [(name, "INT64", [-1, -1]) for name in NAMES]
    assert outputs == {"scores": ("FP32", [-1, 2]), "hidden": ("FP32", [-1, -1, 4])}

    config = grpc_door.get_model_config("Tokens").config
    assert [(each.name, list(each.dims)) for each in config.input] == [(name, [-1]) for name in NAMES]
    assert {each.name: list(each.dims) for each in config.output} == {"scores": [2], "hidden": [-1, 4]}
    over_http = doors["http"][0].get_model_metadata("Tokens")
    assert [each["shape"] for each in over_http["inputs"]] == [[-1, -1]] * 3


@pytest.mark.parametrize("length", [1, 17])
def test_inputs_go_by_name_in_any_order(door, length):
    client, make = door
    arrays = batch(3, length)
    backwards = {name: arrays[name] for name in reversed(NAMES)}
    check(client.infer("Tokens", given(make, backwards)).as_numpy, arrays)


def test_an_output_alone_is_one_that_is_asked_for(grpc_door):
    arrays = batch(2, 4)
    wanted = [triton.InferRequestedOutput("hidden")]
    answer = grpc_door.infer("Tokens", given(triton.InferInput, arrays), outputs=wanted)
    assert [each.name for each in answer.get_response().outputs] == ["hidden"]
    np.testing.assert_allclose(answer.as_numpy("hidden"), expected(arrays)["hidden"], rtol=1e-5, atol=1e-6)


def test_what_loses_nothing_is_converted_in_each_input(door):
    client, make = door
    arrays = batch(2, 6)
    small = {name: array.astype(np.int32) for name, array in arrays.items()}
    check(client.infer("Tokens", given(make, small, datatype="INT32")).as_numpy, arrays)


def test_numbers_in_json_and_typed_contents_are_taken(doors, grpc_door):
    arrays = batch(2, 3)
    made = [triton_http.InferInput(name, list(array.shape), "INT64") for name, array in arrays.items()]
    for item, array in zip(made, arrays.values(), strict=True):
        item.set_data_from_numpy(array, binary_data=False)
    check(doors["http"][0].infer("Tokens", made).as_numpy, arrays)

    pb = triton.service_pb2
    request = pb.ModelInferRequest(model_name="Tokens")
    for name, array in arrays.items():
        item = request.inputs.add(name=name, datatype="INT64", shape=array.shape)
        item.contents.int64_contents.extend(array.reshape(-1).tolist())
    answer = grpc_door._client_stub.ModelInfer(request, timeout=DEADLINE_S)
    scores = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(2, 2)
    np.testing.assert_allclose(scores, expected(arrays)["scores"], rtol=1e-5, atol=1e-6)


IDS, MASK, TYPES = NAMES
WRONG = {
    "a name": ({}, (IDS, "attention", TYPES), 'has no input "attention"; did you mean "attention_mask"?'),
    "twice": ({}, (IDS, MASK, MASK), f'found 2 inputs "{MASK}"; it takes one of each: {", ".join(NAMES)}'),
    "no axis": ({MASK: (2,)}, NAMES, f'input "{MASK}": found shape [2]; the model takes [-1, -1]'),
    "no rows": ({TYPES: (0, 4)}, NAMES, f'input "{TYPES}": found shape [0, 4]; the model takes [-1, -1]'),
    "no length": ({TYPES: (2, 0)}, NAMES, f'input "{TYPES}": found shape [2, 0]; the model takes [-1, -1]'),
    "batches": ({MASK: (1, 4)}, NAMES, f'input "{MASK}": found a batch of 1, but input "{IDS}" has one of 2'),
    "too many": ({IDS: (5, 4)}, NAMES, f'input "{IDS}": found a batch of 5, in shape [5, 4]; at most 4'),
}


def refused(client, inputs):
    with pytest.raises(InferenceServerException) as error:
        client.infer("Tokens", inputs)
    message = error.value.message()
    assert "\n" not in message
    assert "model Tokens" in message
    return message


@pytest.mark.parametrize(("shapes", "names", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_input_is_named(door, shapes, names, said):
    client, make = door
    arrays = {name: np.ones(shapes.get(name, (2, 4)), np.int64) for name in NAMES}
    assert said in refused(client, given(make, arrays, names))


def test_a_missing_input_and_a_wrong_datatype_are_named(door):
    client, make = door
    arrays = batch(2, 4)
    inputs = given(make, arrays)
    missing = refused(client, inputs[:2])
    assert f'found 0 inputs "{TYPES}"; it takes one of each: {", ".join(NAMES)}' in missing
    floats = given(make, {name: array.astype(np.float32) for name, array in arrays.items()}, datatype="FP32")
    wrong = refused(client, [*inputs[:1], floats[1], inputs[2]])
    assert f'input "{MASK}": found datatype FP32; the model takes INT64' in wrong


def test_raw_contents_for_some_inputs_only_are_refused(grpc_door):
    pb = triton.service_pb2
    request = pb.ModelInferRequest(model_name="Tokens", raw_input_contents=[bytes(16), bytes(16)])
    for name in NAMES:
        request.inputs.add(name=name, datatype="INT64", shape=[1, 2])
    with pytest.raises(triton.grpc.RpcError) as error:
        grpc_door._client_stub.ModelInfer(request, timeout=DEADLINE_S)
    assert "2 raw_input_contents for 3 inputs" in error.value.details()


def test_inputs_and_outputs_may_lie_in_shared_memory(grpc_door):
    """Two inputs in a region, the third in the request; one output in the region."""
    arrays, name = batch(2, 6), f"inferometer-test-{os.getpid()}"
    size = arrays[IDS].nbytes
    region = shared_memory.create_shared_memory_region(name, f"/{name}", 2 * size + 16)
    try:
        shared_memory.set_shared_memory_region(region, [arrays[IDS], arrays[TYPES]])
        grpc_door.register_system_shared_memory(name, f"/{name}", 2 * size + 16)
        inputs = given(triton.InferInput, arrays)
        inputs[0].set_shared_memory(name, size)
        inputs[2].set_shared_memory(name, size, offset=size)
        wanted = [triton.InferRequestedOutput(each) for each in ("hidden", "scores")]
        wanted[1].set_shared_memory(name, 16, offset=2 * size)
        answer = grpc_door.infer("Tokens", inputs, outputs=wanted)
        right = expected(arrays)
        np.testing.assert_allclose(answer.as_numpy("hidden"), right["hidden"], rtol=1e-5, atol=1e-6)
        found = shared_memory.get_contents_as_numpy(region, np.float32, (2, 2), offset=2 * size)
        np.testing.assert_allclose(found, right["scores"], rtol=1e-5, atol=1e-6)
    finally:
        grpc_door.unregister_system_shared_memory(name)
        shared_memory.destroy_shared_memory_region(region)


def test_a_body_without_json_is_for_models_of_one_input(agent):
    with closing(Rest(agent.http_url)) as ask:
        path = INFER.format("Tokens")
        error = ask("POST", path, bytes(16), {HEADER_LENGTH: "0"}).error
    assert "takes the inputs input_ids, attention_mask, token_type_ids; send them in JSON" in error


@pytest.fixture(scope="module")
def opened(agent, folder):
    """Opens the model in this process, at the agent, and over both forms of the Open Inference Protocol."""
    with ExitStack() as stack:
        catalog, sessions = Catalog([folder]), {}

        def kserve(url, use):
            remote = RemoteOptions(shared_memory=use)
            return open_kserve(url, catalog, ModelChoice("Tokens"), remote=remote)

        ways = {
            "here": lambda: open_session(catalog.find_models("Tokens")[0], SessionOptions(), Registry()),
            "agent": lambda: open_remote_agent(agent.address, "Tokens"),
            "grpc": lambda: kserve(f"kserve://{agent.address}", SharedMemoryUse.OFF),
            "http": lambda: kserve(f"kserve+{agent.http_url}", SharedMemoryUse.OFF),
            "memory": lambda: kserve(f"kserve://{agent.address}", SharedMemoryUse.ON),
            "http memory": lambda: kserve(f"kserve+{agent.http_url}", SharedMemoryUse.ON),
        }

        def session(way):
            if way not in sessions:
                sessions[way] = stack.enter_context(ways[way]())
            return sessions[way]

        yield session


WAYS = ("here", "agent", "grpc", "http", "memory", "http memory")


@pytest.mark.parametrize("way", WAYS)
def test_batches_of_inputs_and_of_tensors_are_predicted(opened, way):
    session = opened(way)
    arrays = batch(2, 7)
    result = session.predict_tensor(arrays)
    assert result.failures == ()
    check(result.outputs.tensors.__getitem__, arrays)

    inputs = [Input(str(n), NamedTensors({k: a[n] for k, a in arrays.items()})) for n in range(2)]
    for found in (session.predict(inputs), *session.predict_batches([inputs])):
        assert found.failures == ()
        check(found.outputs.tensors.__getitem__, arrays)


def test_a_stream_takes_a_batch_of_named_tensors(opened, agent):
    session, arrays = opened("agent"), batch(2, 7)
    request = PredictStreamRequest.FromString(encode_batch_request(session.session_id, arrays))
    with triton.grpc.insecure_channel(agent.address) as channel:
        [answer] = PredictServiceStub(channel).PredictStream(iter([request]), timeout=DEADLINE_S)
        assert list(answer.input_ids) == ["0", "1"]

        request.tensors.add(name=IDS).tensor.CopyFrom(request.tensors[0].tensor)
        with pytest.raises(triton.grpc.RpcError) as error:
            list(PredictServiceStub(channel).PredictStream(iter([request]), timeout=DEADLINE_S))
        assert f'tensor "{IDS}": occurs twice' in error.value.details()


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_lacks_a_tensor_is_refused(opened, way):
    with pytest.raises(InputError, match="token_type_ids"):
        opened(way).predict_tensor({name: np.ones((1, 2), np.int64) for name in NAMES[:2]})


@pytest.mark.parametrize("inputs", [PREPARED, READ], ids=["prepared", "read"])
@pytest.mark.parametrize("way", WAYS)
def test_load_sends_each_query_as_its_own_length(opened, way, inputs):
    with make_load_target(opened(way), inputs, max_batch_size=4) as target:
        log = QueryLog(Schedule(np.zeros(QUERIES, np.int64), "all at once", 1.0), time.perf_counter_ns())
        target.begin(log)
        for query in range(QUERIES):
            log.sent(query, time.perf_counter_ns())
            target.submit(query)
        target.end(DEADLINE_S)
    assert log.reasons == {}
    assert log.queries().count(Outcome.ANSWERED) == QUERIES


def test_synthetic_inputs_have_all_tensors_in_one_length(folder):
    manifest = Catalog([folder]).find_models("Tokens")[0]
    made = synthetic_tensors([each.parameters for each in manifest.inputs], 1, count=3)
    assert made.source == "3 synthetic inputs, seed 1, dynamic axes of 128"
    assert [tuple(row) for row in made.rows] == [NAMES] * 3
    assert {array.shape for row in made.rows for array in row.values()} == {(1, 128)}
    assert made.are_alike
    assert not PREPARED.are_alike


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (
            "Fewer",
            'takes 3 inputs, "input_ids", "attention_mask", "token_type_ids"; the manifest of Fewer 1.0',
        ),
        ("Others", 'has no input "ids", which the manifest of Others 1.0 has; did you mean "input_ids"?'),
    ],
)
def test_a_manifest_with_other_inputs_than_the_servers_is_refused(agent, folder, manifest, said):
    with pytest.raises(ConfigurationError) as error:
        open_kserve(f"kserve://{agent.address}/Tokens", Catalog([folder]), ModelChoice(manifest))
    assert said in str(error.value)
