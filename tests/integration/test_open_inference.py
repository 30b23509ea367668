"""The Open Inference Protocol with a fake framework, called by tritonclient and with raw messages."""

import queue

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from fake_framework import SIDE, mean_scores, wait_for
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from open_inference import TIMEOUT_S, images, refused, tensor_of, typed

from inferometer.agent.serving.batching import BatchingOptions, QueuePolicy, TimeoutAction
from inferometer.agent.serving.served_models import ServingOptions

SERVICE = "inference.GRPCInferenceService"


@pytest.fixture(scope="module")
def agent(start_shared_agent):
    return start_shared_agent()


@pytest.fixture(scope="module")
def client(agent):
    with triton.InferenceServerClient(agent.address) as found:
        yield found


@pytest.fixture
def fresh(start_agent):
    """The client of an agent that nobody else asks."""
    with triton.InferenceServerClient(start_agent().address) as found:
        yield found


@pytest.fixture
def stub(agent, channel_to):
    return triton.service_pb2_grpc.GRPCInferenceServiceStub(channel_to(agent.address))


def infer_request(*inputs, model="Mean", **fields):
    return triton.service_pb2.ModelInferRequest(model_name=model, inputs=inputs, **fields)


def scores(response):
    return np.frombuffer(response.raw_output_contents[0], np.float32).reshape(response.outputs[0].shape)


def reason(call, *arguments):
    with pytest.raises(grpc.RpcError) as error:
        call(*arguments, timeout=TIMEOUT_S)
    details = error.value.details()
    assert "\n" not in details
    return error.value.code(), details


def test_server_is_live_ready_and_says_what_it_is(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    metadata = client.get_server_metadata()
    assert metadata.name == "inferometer"
    assert {"model_configuration", "model_repository", "statistics"} <= set(metadata.extensions)


def test_metadata_says_what_the_model_takes_and_gives(client):
    metadata = client.get_model_metadata("Mean")
    assert (metadata.name, list(metadata.versions), metadata.platform) == ("Mean", ["1"], "fake")
    [given], [got] = metadata.inputs, metadata.outputs
    assert (given.name, given.datatype, list(given.shape)) == ("data", "FP32", [-1, 1, SIDE, SIDE])
    assert (got.name, got.datatype, list(got.shape)) == ("scores", "FP32", [-1, 3])


def test_configuration_has_what_load_generators_ask_for(client):
    config = client.get_model_config("Mean").config
    assert (config.name, config.platform, config.backend) == ("Mean", "fake", "fake")
    assert config.max_batch_size > 1
    assert [(i.name, i.data_type, list(i.dims)) for i in config.input] == [
        ("data", triton.model_config_pb2.TYPE_FP32, [1, SIDE, SIDE])
    ]
    assert [(o.name, o.data_type, list(o.dims)) for o in config.output] == [
        ("scores", triton.model_config_pb2.TYPE_FP32, [3])
    ]
    assert config.input[0].format == triton.model_config_pb2.ModelInput.FORMAT_NCHW
    assert not config.HasField("dynamic_batching")
    assert config.parameters["framework"].string_value == "Fake"


def test_configuration_says_how_requests_are_put_together(start_agent):
    batching = BatchingOptions(
        max_batch_size=8, max_queue_delay_ms=1.5, preferred_batch_sizes=(4, 8), max_queue=77, instances=3
    )
    agent = start_agent(serving=ServingOptions(batching=batching))
    with triton.InferenceServerClient(agent.address) as client:
        config = client.get_model_config("Mean").config
    assert config.max_batch_size == 8
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 8]
    assert config.dynamic_batching.max_queue_delay_microseconds == 1500
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 77
    [group] = config.instance_group
    assert (group.count, group.kind) == (3, triton.model_config_pb2.ModelInstanceGroup.KIND_CPU)


PRIORITIES = BatchingOptions(
    priority_levels=2,
    default_priority_level=2,
    default_queue_policy=QueuePolicy(TimeoutAction.REJECT, default_timeout_microseconds=100_000),
    priority_queue_policy=((1, QueuePolicy(TimeoutAction.DELAY, 50, max_queue_size=1)),),
)


def test_configuration_has_priorities_and_queue_policies(start_agent):
    agent = start_agent(serving=ServingOptions(batching=PRIORITIES))
    with triton.InferenceServerClient(agent.address) as client:
        dynamic = client.get_model_config("Mean").config.dynamic_batching
    policies = triton.model_config_pb2.ModelQueuePolicy
    assert (dynamic.priority_levels, dynamic.default_priority_level) == (2, 2)
    assert dynamic.default_queue_policy == policies(
        timeout_action=policies.REJECT,
        default_timeout_microseconds=100_000,
        allow_timeout_override=True,
        max_queue_size=10_000,
    )
    assert dict(dynamic.priority_queue_policy) == {
        1: policies(
            timeout_action=policies.DELAY,
            default_timeout_microseconds=50,
            allow_timeout_override=True,
            max_queue_size=1,
        )
    }


def test_requests_wait_by_the_policy_of_their_priority(start_agent, manifest_folder):
    agent = start_agent(serving=ServingOptions(batching=PRIORITIES))
    answers = queue.SimpleQueue()
    with triton.InferenceServerClient(agent.address) as client:

        def ask(**options):
            client.async_infer(
                "Waiting",
                [tensor_of(images(1))],
                lambda result, error: answers.put((result, error)),
                **options,
            )

        ask()  # which is predicted for longer than a request may wait
        wait_for((manifest_folder / "begun").exists)
        ask(priority=1, timeout=1)
        wait_for(lambda: agent.models.loaded[0].waiting == 1)
        code, message = refused(client.infer, "Waiting", [tensor_of(images(1))], priority=1)
        assert code == "StatusCode.RESOURCE_EXHAUSTED"
        assert "its queue of 1 requests of priority 1 is full" in message
        code, message = refused(client.infer, "Waiting", [tensor_of(images(1))])
        assert code == "StatusCode.DEADLINE_EXCEEDED"
        assert "timeout expired in the queue" in message
        (manifest_folder / "go").touch()
        assert [answers.get(timeout=TIMEOUT_S)[1] for _ in range(2)] == [None, None]
        [found] = client.get_inference_statistics("Waiting").model_stats
    assert (found.inference_stats.success.count, found.inference_stats.fail.count) == (2, 2)


@pytest.mark.parametrize("value", ["high", True, -1])
def test_a_priority_that_is_no_number_is_refused(start_agent, channel_to, value):
    agent = start_agent(serving=ServingOptions(batching=PRIORITIES))
    stub = triton.service_pb2_grpc.GRPCInferenceServiceStub(channel_to(agent.address))
    request = infer_request(typed(images(1)))
    fields = {str: "string_param", bool: "bool_param", int: "int64_param"}
    setattr(request.parameters["priority"], fields[type(value)], value)
    code, details = reason(stub.ModelInfer, request)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "parameter priority must be a whole number from 1, the highest, on" in details


def test_raw_tensor_is_predicted(client):
    batch = images(3)
    answer = client.infer("Mean", [tensor_of(batch)], model_version="1.0", request_id="seven")
    np.testing.assert_array_equal(answer.as_numpy("scores"), mean_scores(batch))
    response = answer.get_response()
    assert (response.model_name, response.model_version, response.id) == ("Mean", "1", "seven")


def test_response_says_how_long_each_part_took(client):
    parameters = client.infer("Mean", [tensor_of(images(3))]).get_response().parameters
    times = {name: parameters[name].int64_param for name in parameters}
    assert times.pop("batch_size") == 3
    assert set(times) == {"preprocess_ns", "queue_ns", "batch_ns", "predict_ns", "postprocess_ns"}
    assert all(time_ns >= 0 for time_ns in times.values())
    assert times["predict_ns"] > 0


def test_raw_tensor_may_begin_anywhere_in_the_message(client):
    batch = images(2)
    for length in range(8):
        answer = client.infer("Echo", [tensor_of(batch)], request_id="x" * length)
        np.testing.assert_array_equal(answer.as_numpy("data"), batch)


def test_typed_contents_are_predicted_like_raw_ones(stub):
    batch = images(2)
    response = stub.ModelInfer(infer_request(typed(batch)), timeout=TIMEOUT_S)
    np.testing.assert_array_equal(scores(response), mean_scores(batch))


@pytest.mark.parametrize(("dtype", "datatype"), [("uint8", "UINT8"), ("int16", "INT16"), ("float16", "FP16")])
def test_other_datatypes_are_converted_where_nothing_is_lost(client, dtype, datatype):
    batch = (images(3) * 100).astype(dtype)
    answer = client.infer("Mean", [tensor_of(batch, datatype=datatype)])
    np.testing.assert_array_equal(answer.as_numpy("scores"), mean_scores(batch.astype(np.float32)))


def test_bfloat16_is_the_upper_half_of_a_float(client):
    batch = np.float32([0.5, -3.0]).repeat(16).reshape(2, 1, SIDE, SIDE)
    tensor = tensor_of((batch.view(np.uint32) >> 16).astype(np.uint16), datatype="BF16")
    np.testing.assert_array_equal(client.infer("Mean", [tensor]).as_numpy("scores"), mean_scores(batch))


def test_only_the_outputs_that_are_asked_for_come(client):
    answer = client.infer("Mean", [tensor_of(images(1))], outputs=[triton.InferRequestedOutput("scores")])
    assert [output.name for output in answer.get_response().outputs] == ["scores"]
    code, message = refused(
        client.infer, "Mean", [tensor_of(images(1))], outputs=[triton.InferRequestedOutput("score")]
    )
    assert code == "StatusCode.INVALID_ARGUMENT"
    assert 'no output "score"; did you mean "scores"?' in message


def test_best_classes_come_instead_of_scores(client):
    batch = np.full((1, 1, SIDE, SIDE), 2, np.float32)  # whose scores are 2, 3 and -2
    best = triton.InferRequestedOutput("scores", class_count=2)
    found = client.infer("Mean", [tensor_of(batch)], outputs=[best]).as_numpy("scores")
    assert found.tolist() == [[b"3.000000:1", b"2.000000:0"]]


@pytest.mark.parametrize(
    ("tensor", "parts"),
    [
        (tensor_of(images(1), name="date"), ['no input "date"', 'did you mean "data"?']),
        (tensor_of(images(1).astype(np.float64), datatype="FP64"), ["FP64", "takes FP32"]),
        (tensor_of(images(1), datatype="FP33"), ['datatype "FP33" is not known', "takes FP32"]),
        (tensor_of(images(1), datatype="BYTES"), ["BYTES", "takes FP32"]),
        (tensor_of(images(1), shape=[1, SIDE, SIDE]), [f"[1, {SIDE}, {SIDE}]", f"[-1, 1, {SIDE}, {SIDE}]"]),
        (tensor_of(images(1), shape=[1, 3, SIDE, SIDE]), [f"[1, 3, {SIDE}, {SIDE}]"]),
        (tensor_of(images(1), shape=[0, 1, SIDE, SIDE]), ["batch of 1 or more"]),
        (tensor_of(images(1), shape=[-1, 1, SIDE, SIDE]), ["batch of 1 or more"]),
        (tensor_of(images(1), shape=[2**62, 1, SIDE, SIDE]), ["at most 10000"]),
        (tensor_of(images(1), shape=[2, 1, SIDE, SIDE]), ["64 bytes", "requires 128 bytes"]),
        (tensor_of(images(1).reshape(-1)[:-1], shape=[1, 1, SIDE, SIDE]), ["60 bytes", "requires 64 bytes"]),
        (tensor_of(images(2), shape=[1, 1, SIDE, SIDE]), ["128 bytes", "requires 64 bytes"]),
    ],
    ids=[
        "name",
        "datatype",
        "unknown datatype",
        "bytes",
        "axes",
        "shape",
        "empty batch",
        "negative batch",
        "huge batch",
        "larger batch",
        "too few bytes",
        "too many bytes",
    ],
)
def test_wrong_tensor_is_refused_with_what_was_found_and_what_is_taken(client, tensor, parts):
    code, message = refused(client.infer, "Mean", [tensor])
    assert code == "StatusCode.INVALID_ARGUMENT"
    assert "model Mean 1.0" in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (infer_request(typed(images(1), "fp64_contents")), "found fp64_contents; FP32 is in fp32_contents"),
        (infer_request(typed(images(1)[..., :3], shape=[1, 1, SIDE, SIDE])), "12 elements in fp32_contents"),
        (infer_request(typed(images(1)), raw_input_contents=[images(1).tobytes()]), "give one of them"),
        (infer_request(), 'found 0 inputs "data"; it takes one'),
        (infer_request(typed(images(1)), typed(images(1))), 'found 2 inputs "data"'),
        (infer_request(typed(images(1)), raw_input_contents=[b"", b""]), "2 raw_input_contents for one"),
    ],
    ids=["other field", "too few elements", "both contents", "no input", "input twice", "raw contents"],
)
def test_request_that_contradicts_itself_is_refused(stub, request_, part):
    code, message = reason(stub.ModelInfer, request_)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert part in message


def test_shared_memory_is_refused(client):
    tensor = triton.InferInput("data", [1, 1, SIDE, SIDE], "FP32").set_shared_memory("region", 64)
    code, message = refused(client.infer, "Mean", [tensor])
    assert code == "StatusCode.INVALID_ARGUMENT"
    assert "shared memory is not offered" in message


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("Meam",), 'did you mean "Mean"?'),
        (("Mean", "7"), "it has: 1.0"),
        (("Mean@Fakir",), 'did you mean "Fake"?'),
    ],
    ids=["name", "version", "framework"],
)
def test_unknown_model_is_refused_alike_by_every_method(client, arguments, part):
    name, version = (*arguments, "")[:2]
    for call in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
        code, message = refused(call, name, version)
        assert code == "StatusCode.NOT_FOUND"
        assert part in message
    code, message = refused(client.infer, name, [tensor_of(images(1))], version)
    assert code == "StatusCode.NOT_FOUND"
    assert part in message
    assert not client.is_model_ready(name, version)


def test_wrong_request_loads_no_model(fresh):
    refused(fresh.infer, "Mean", [tensor_of(images(1), name="date")])
    assert not fresh.is_model_ready("Mean")
    fresh.infer("Mean", [tensor_of(images(1))])
    assert fresh.is_model_ready("Mean")


def test_framework_that_fails_is_told_and_the_server_goes_on(client, caplog):
    code, message = refused(client.infer, "Failing", [tensor_of(images(1))])
    assert (code, "the fake framework failed" in message) == ("StatusCode.INTERNAL", True)
    code, message = refused(client.infer, "Crashing", [tensor_of(images(1))])
    assert code == "StatusCode.INTERNAL"
    assert "a secret detail" not in message
    assert "ZeroDivisionError" in caplog.text
    client.infer("Mean", [tensor_of(images(1))])


def test_models_are_listed_loaded_and_unloaded(fresh):
    states = {model.name: model.state for model in fresh.get_model_repository_index().models}
    assert states["Mean"] == "UNAVAILABLE"
    fresh.load_model("Mean")
    assert fresh.is_model_ready("Mean")
    listed = {model.name: model.state for model in fresh.get_model_repository_index().models}
    assert (listed["Mean"], listed["Echo"]) == ("READY", "UNAVAILABLE")
    fresh.unload_model("mean")
    assert not fresh.is_model_ready("Mean")


def test_ready_index_has_only_loaded_models(start_agent, channel_to):
    stub = triton.service_pb2_grpc.GRPCInferenceServiceStub(channel_to(start_agent().address))
    stub.RepositoryModelLoad(
        triton.service_pb2.RepositoryModelLoadRequest(model_name="Mean"), timeout=TIMEOUT_S
    )
    index = stub.RepositoryIndex(triton.service_pb2.RepositoryIndexRequest(ready=True), timeout=TIMEOUT_S)
    assert [(model.name, model.version, model.state) for model in index.models] == [("Mean", "1", "READY")]


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ("{", "not a model configuration"),
        ("[1]", "not a model configuration"),
        ("[" * 100_000, "not a model configuration"),
        ('{"parameters": {"weights": "random"}}', "not a model configuration"),
        ('{"input": [{"name": "data"}]}', 'config has "input"'),
        ('{"instances": 2}', 'no field named "instances"'),
        ('{"max_batch_size": "many"}', "max_batch_size"),
        ('{"max_batch_size": -1}', "max_batch_size is -1"),
        ('{"max_batch_size": 10001}', "allowed: 0 to --max_inputs, 10000"),
        ('{"dynamic_batching": {}}', "requires a max_batch_size of at least 2"),
        ('{"dynamic_batching": {"priority_levels": 2}}', '"dynamic_batching.priority_levels"'),
        ('{"max_batch_size": 4, "dynamic_batching": {"preferred_batch_size": [8]}}', "to max_batch_size, 4"),
        ('{"instance_group": [{"count": 65}]}', "allowed: 1 to 64"),
        ('{"instance_group": [{"count": 1}, {"count": 2}]}', "2 groups"),
        ('{"instance_group": [{"kind": "KIND_GPU"}]}', "the model is on cpu"),
        ('{"instance_group": [{"gpus": [0], "kind": "KIND_CPU"}]}', "KIND_CPU, but the model is on gpu:0"),
        ('{"instance_group": [{"gpus": [0]}, {"count": 2}]}', "2 groups"),
        ('{"instance_group": [{"gpus": [-1]}]}', 'gpus is "-1"'),
        ('{"instance_group": [{"gpus": [0], "count": -1}]}', "give indices of GPUs"),
        ('{"instance_group": [{"gpus": [0, 1], "count": 33}]}', "allowed: 1 to 64"),
        ('{"instance_group": [{"gpus": [0, 0], "count": 2147483647}]}', "allowed: 1 to 64"),
        ('{"instance_group": [{"name": "Mean_0"}]}', 'config has "instance_group.name"'),
        ('{"parameters": {"intra_op_thread_count": {"string_value": "0"}}}', "whole number"),
        ('{"parameters": {"weight": {"string_value": "random"}}}', 'did you mean "weights"?'),
        ('{"parameters": {"weights": {"string_value": "good"}}}', "pretrained, random"),
        ('{"parameters": {"seed": {"string_value": "-1"}}}', "whole number"),
        ('{"parameters": {"device": {"string_value": "tpu"}}}', "cpu, gpu or gpu:N"),
    ],
)
def test_loading_with_what_makes_no_sense_is_refused(client, config, part):
    code, message = refused(client.load_model, "Short", config=config)  # which no other test loads
    assert code == "StatusCode.INVALID_ARGUMENT"
    assert part in message
    assert not client.is_model_ready("Short")


def test_files_are_refused(client):
    code, message = refused(client.load_model, "Short", config="{}", files={"file:1/model.onnx": b""})
    assert (code, "cannot send files" in message) == ("StatusCode.INVALID_ARGUMENT", True)


def test_unknown_model_is_neither_loaded_nor_unloaded(client):
    for call in (client.load_model, client.unload_model):
        code, message = refused(call, "Meam")
        assert code == "StatusCode.NOT_FOUND"
        assert 'did you mean "Mean"?' in message


def test_statistics_count_requests_inputs_and_failures(fresh):
    fresh.load_model("Mean")
    for count in (1, 3, 3):
        fresh.infer("Mean", [tensor_of(images(count))])
    fresh.get_model_metadata("Mean")  # which asks the model, and is not counted
    [found] = fresh.get_inference_statistics("Mean").model_stats
    assert (found.name, found.version) == ("Mean", "1")
    assert (found.inference_count, found.execution_count) == (7, 3)
    stats = found.inference_stats
    assert (stats.success.count, stats.fail.count, stats.queue.count) == (3, 0, 3)
    assert stats.success.ns >= stats.compute_infer.ns > 0
    assert [(b.batch_size, b.compute_infer.count) for b in found.batch_stats] == [(1, 1), (3, 2)]
    assert found.last_inference > 1_700_000_000_000
    refused(fresh.infer, "Failing", [tensor_of(images(1))])
    [failing] = fresh.get_inference_statistics("Failing").model_stats
    assert (failing.inference_stats.success.count, failing.inference_stats.fail.count) == (0, 1)
    assert {model.name for model in fresh.get_inference_statistics().model_stats} == {"Mean", "Failing"}


def test_timeout_of_a_request_is_honoured(fresh, manifest_folder):
    code, message = refused(fresh.infer, "Waiting", [tensor_of(images(1))], timeout=100_000)
    (manifest_folder / "go").touch()
    assert code == "StatusCode.DEADLINE_EXCEEDED"
    assert "model Waiting 1.0" in message
    fresh.infer("Waiting", [tensor_of(images(1))], timeout=2**62)


def test_secret_is_asked_of_every_method_but_health(start_agent, channel_to):
    agent = start_agent(secret="open sesame")
    with triton.InferenceServerClient(agent.address) as client:
        for call, *arguments in (
            (client.is_server_live,),
            (client.is_server_ready,),
            (client.get_server_metadata,),
            (client.is_model_ready, "Mean"),
            (client.get_model_metadata, "Mean"),
            (client.get_model_config, "Mean"),
            (client.get_inference_statistics,),
            (client.get_model_repository_index,),
            (client.load_model, "Mean"),
            (client.unload_model, "Mean"),
            (client.infer, "Mean", [tensor_of(images(1))]),
        ):
            assert refused(call, *arguments)[0] == "StatusCode.UNAUTHENTICATED"
        headers = {"authorization": "Bearer open sesame"}
        client.infer("Mean", [tensor_of(images(1))], headers=headers)
    health = health_pb2_grpc.HealthStub(channel_to(agent.address))
    answer = health.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=TIMEOUT_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_tells_the_service_and_its_messages(agent, channel_to):
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel_to(agent.address))
    asked = [
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
        for symbol in (SERVICE, "inference.ModelConfig", "inferometer.v1.PredictService")
    ]
    answers = list(reflection.ServerReflectionInfo(iter(asked), timeout=TIMEOUT_S))
    files = [answer.file_descriptor_response.file_descriptor_proto for answer in answers]
    assert all(files)
    assert any(b"ModelStreamInfer" in content for content in files[0])
