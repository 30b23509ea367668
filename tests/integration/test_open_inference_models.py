"""tritonclient with real models: DigitsCNN in every framework, and ResNet50 with random weights."""

import numpy as np
import pytest
import tritonclient.grpc as triton
from open_inference import TIMEOUT_S, refused, tensor_of, typed

from inferometer.agent.hardware.environment import Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session, select_model
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.serving.served_models import ServingOptions
from inferometer.manifests.catalog import Catalog

FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")
RANDOM = '{"parameters": {"weights": {"string_value": "random"}, "seed": {"string_value": "3"}}}'


@pytest.fixture(scope="module")
def catalog():
    return Catalog()


@pytest.fixture
def client(catalog):
    with (
        AgentServer(catalog, Registry(), ServerOptions(port=0)) as agent,
        triton.InferenceServerClient(agent.address) as found,
    ):
        yield found


def images_for(catalog, name, count=2):
    dimensions = (
        select_model(catalog, Registry(), name, weights=Weights.RANDOM).inputs[0].parameters.dimensions
    )
    return np.random.default_rng(0).random((count, *dimensions), np.float32)


def outputs_of(catalog, name, batch, framework=None, **options):
    """What the model gives in this process."""
    chosen = SessionOptions(**options)
    manifest = select_model(catalog, Registry(), name, None, framework, chosen.weights)
    with open_session(manifest, chosen, Registry()) as session:
        return session.infer({manifest.tensors[0].name: batch}).outputs


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_digits_cnn_is_listed_loaded_and_predicted_by_name_and_framework(client, catalog, framework):
    name = f"DigitsCNN@{framework}"
    listed = {
        (model.name, model.version): model.state for model in client.get_model_repository_index().models
    }
    assert listed[name, "1"] == "UNAVAILABLE"
    client.load_model(name)
    assert client.is_model_ready(name, "1")
    batch = images_for(catalog, "DigitsCNN")
    [output] = client.get_model_metadata(name).outputs
    assert list(output.shape) == [-1, 10]
    got = client.infer(name, [tensor_of(batch)], model_version="1.0").as_numpy(output.name)
    [wanted] = outputs_of(catalog, "DigitsCNN", batch, framework).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert client.get_model_config(name).config.backend == framework.lower()


def test_name_alone_is_that_of_the_first_installed_framework(client, catalog):
    assert client.get_model_config("DigitsCNN").config.parameters["framework"].string_value == "PyTorch"
    assert client.is_model_ready("DigitsCNN")
    assert client.is_model_ready("DigitsCNN@PyTorch")
    assert not client.is_model_ready("DigitsCNN@MXNet")


def test_typed_and_raw_contents_give_the_same(client, catalog):
    batch = images_for(catalog, "DigitsCNN")
    raw = client.infer("DigitsCNN", [tensor_of(batch)]).get_response()
    request = triton.service_pb2.ModelInferRequest(model_name="DigitsCNN", inputs=[typed(batch)])
    other = client._client_stub.ModelInfer(request, timeout=TIMEOUT_S)
    assert raw.raw_output_contents == other.raw_output_contents


def test_classes_have_the_labels_of_the_model(client, catalog):
    batch = images_for(catalog, "DigitsCNN", count=1)
    [scores] = outputs_of(catalog, "DigitsCNN", batch).values()
    [output] = client.get_model_metadata("DigitsCNN").outputs
    best = triton.InferRequestedOutput(output.name, class_count=1)
    [[found]] = client.infer("DigitsCNN", [tensor_of(batch)], outputs=[best]).as_numpy(output.name)
    place = int(scores.argmax())
    assert found.decode().split(":")[1:] == [str(place), str(place)]


def test_resnet50_is_loaded_with_random_weights_and_predicted(client, catalog):
    batch = images_for(catalog, "ResNet50", count=1)
    client.load_model("ResNet50", config=RANDOM)
    assert client.is_model_ready("ResNet50")
    config = client.get_model_config("ResNet50").config
    assert config.parameters["weights"].string_value == "random"
    assert config.parameters["seed"].string_value == "3"
    answer = client.infer("ResNet50", [tensor_of(batch)])
    [wanted] = outputs_of(catalog, "ResNet50", batch, weights=Weights.RANDOM, seed=3).values()
    [output] = answer.get_response().outputs
    np.testing.assert_allclose(answer.as_numpy(output.name), wanted, rtol=1e-4, atol=1e-4)
    assert list(output.shape) == [1, 1000]
    client.unload_model("ResNet50")
    assert not client.is_model_ready("ResNet50")


def test_unloading_forgets_what_a_client_has_loaded_a_name_with(client):
    weights = []
    for config in (RANDOM, None):
        if config:
            client.load_model("DigitsCNN", config=config)
        parameters = client.get_model_config("DigitsCNN").config.parameters
        weights.append(parameters["weights"].string_value)
        client.unload_model("DigitsCNN")
    assert weights == ["random", "pretrained"]


def test_loading_again_with_another_seed_gives_another_model(client, catalog):
    batch = images_for(catalog, "DigitsCNN", count=1)
    found = []
    for seed in ("3", "4", "3"):
        client.load_model("DigitsCNN", config=RANDOM.replace('"3"', f'"{seed}"'))
        answer = client.infer("DigitsCNN", [tensor_of(batch)])
        found.append(answer.get_response().raw_output_contents[0])
        [loaded] = client.get_inference_statistics().model_stats
        assert (loaded.name, loaded.inference_count) == ("DigitsCNN", 1)
    assert found[0] == found[2] != found[1]


def test_server_gives_random_weights_to_every_model_where_it_is_told_to(catalog):
    options = ServerOptions(port=0, serving=ServingOptions(session=SessionOptions(weights=Weights.RANDOM)))
    with (
        AgentServer(catalog, Registry(), options) as agent,
        triton.InferenceServerClient(agent.address) as client,
    ):
        config = client.get_model_config("ResNet50").config
        assert config.parameters["weights"].string_value == "random"


def test_weights_that_nobody_published_are_refused_with_what_there_is(client):
    code, message = refused(client.load_model, "BVLC-AlexNet@PyTorch")
    assert code == "StatusCode.FAILED_PRECONDITION"
    assert "AlexNet" in message


@pytest.mark.parametrize("name", ["DigitsCNN", "ResNet50"])
def test_wrong_requests_to_models_of_the_program_are_refused(client, catalog, name):
    client.load_model(name, config=RANDOM)
    batch = images_for(catalog, name, count=1)
    wrong = [
        tensor_of(batch, name="pixels"),
        tensor_of(batch.astype(np.float64), datatype="FP64"),
        tensor_of(batch[:, :, :-1]),
        tensor_of(batch, shape=[3, *batch.shape[1:]]),
    ]
    for tensor, part in zip(wrong, ("known: data", "FP32", "-1", "requires"), strict=True):
        code, message = refused(client.infer, name, [tensor])
        assert code == "StatusCode.INVALID_ARGUMENT"
        assert part in message
    client.infer(name, [tensor_of(batch)])
