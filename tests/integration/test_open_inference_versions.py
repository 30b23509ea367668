"""Versions over the Open Inference Protocol: the same whole numbers in every answer, and a policy."""

import numpy as np
import pytest
import tritonclient.grpc as triton
from open_inference import images, refused, tensor_of

from inferometer.agent.serving.served_models import ServingOptions, VersionPolicies

VERSIONS = {"1.0": "echo", "1.0.5": "echo", "1.1": "mean", "2.0": "mean", "3": "echo"}
"""The versions of one model, and what they do."""
MANIFEST = """
name: Several
version: "{version}"
framework: {{name: Fake, version: "*"}}
inputs: [{{type: image, parameters: {{dimensions: [1, 4, 4], color_mode: GRAY}}}}]
output: {{type: raw}}
model: {{architecture: {architecture}}}
"""
WITH_VERSION = '{"parameters": {"version": {"string_value": "1"}}}'


@pytest.fixture
def client_of(start_agent, manifest_folder):
    """Connects to an agent with several versions of a model, of which a policy serves some."""
    for version, architecture in VERSIONS.items():
        text = MANIFEST.format(version=version, architecture=architecture)
        (manifest_folder / f"several-{version}.yml").write_text(text)
    clients = []

    def connect(policy="all"):
        agent = start_agent(serving=ServingOptions(versions=VersionPolicies.parse(policy.split())))
        clients.append(triton.InferenceServerClient(agent.address))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def listed(client):
    return {
        model.version: model.state
        for model in client.get_model_repository_index().models
        if model.name == "Several"
    }


def answered(client, version):
    """The version that answered, and the name of its output."""
    response = client.infer("Several", [tensor_of(images(1))], model_version=version).get_response()
    return response.model_version, response.outputs[0].name


@pytest.mark.parametrize(
    ("asked", "version", "output"),
    [
        ("", "3", "data"),
        ("1", "1", "data"),
        ("1.0", "1", "data"),
        ("1.1", "1001001000", "scores"),
        ("1001001000", "1001001000", "scores"),
        ("2", "2", "scores"),
        ("2.0", "2", "scores"),
        ("3", "3", "data"),
        ("<3", "2", "scores"),
    ],
)
def test_each_method_has_the_same_version_however_it_is_asked_for(client_of, asked, version, output):
    client = client_of()
    assert answered(client, asked) == (version, output)
    assert client.is_model_ready("Several", asked)
    assert listed(client) == {
        each: "READY" if each == version else "UNAVAILABLE"
        for each in ("3", "2", "1001001000", "1001000005", "1")
    }
    metadata = client.get_model_metadata("Several", asked)
    assert list(metadata.versions) == ["3", "2", "1001001000", "1001000005", "1"]
    assert [each.name for each in metadata.outputs] == [output]
    config = client.get_model_config("Several", asked).config
    assert config.parameters["version"].string_value == version
    [one] = client.get_inference_statistics("Several", asked).model_stats
    [found] = client.get_inference_statistics().model_stats
    assert (one.version, found.version, found.inference_count) == (version, version, 1)


def test_several_versions_are_served_at_once_and_counted_each_by_itself(client_of):
    client = client_of()
    batch = images(2)
    for version, times in (("1", 1), ("2", 2), ("3", 3)):
        for _ in range(times):
            client.infer("Several", [tensor_of(batch)], model_version=version)
    counts = {
        each.version: each.inference_stats.success.count
        for each in client.get_inference_statistics().model_stats
    }
    assert counts == {"1": 1, "2": 2, "3": 3}
    client.unload_model("Several")
    assert not any(client.is_model_ready("Several", version) for version in ("1", "2", "3"))


@pytest.mark.parametrize(
    ("policy", "served", "latest", "unserved"),
    [
        ("latest:1", ["3"], "3", "2"),
        ("latest:2", ["3", "2"], "3", "1.0"),
        ("specific:1,2", ["2", "1"], "2", "3"),
        ("specific:1.1", ["1001001000"], "1001001000", "1"),
    ],
)
def test_only_what_the_policy_serves_is_listed_described_ready_and_inferred(
    client_of, policy, served, latest, unserved
):
    client = client_of(policy)
    assert answered(client, "")[0] == latest
    assert list(listed(client)) == served
    assert list(client.get_model_metadata("Several").versions) == served
    for version in served:
        assert answered(client, version)[0] == version
    assert not client.is_model_ready("Several", unserved)
    for call in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
        code, message = refused(call, "Several", unserved)
        assert code == "StatusCode.NOT_FOUND"
        assert (
            f"no version {unserved} under version policy {policy}; it serves: {', '.join(served)}" in message
        )
    assert refused(client.infer, "Several", [tensor_of(images(1))], unserved)[0] == "StatusCode.NOT_FOUND"
    config = WITH_VERSION.replace("1", unserved)
    assert refused(client.load_model, "Several", config=config)[0] == "StatusCode.NOT_FOUND"


def test_the_configuration_has_the_policy(client_of):
    assert client_of().get_model_config("Mean").config.version_policy.HasField("all")
    latest = client_of("latest:2").get_model_config("Mean").config.version_policy
    assert latest.latest.num_versions == 2
    specific = client_of("specific:1,1.1,2.0").get_model_config("Mean").config.version_policy
    assert list(specific.specific.versions) == [1, 1001001000, 2]


def test_model_may_have_a_policy_of_its_own(client_of):
    client = client_of("specific:1 sEVERAL=latest:2")
    assert set(listed(client)) == {"3", "2"}
    assert answered(client, "")[0] == "3"
    _, message = refused(client.get_model_metadata, "Several", "1")
    assert "under version policy latest:2; it serves: 3, 2" in message
    config = client.get_model_config("Several@Fake").config
    assert config.version_policy.latest.num_versions == 2
    assert list(client.get_model_config("Mean").config.version_policy.specific.versions) == [1]


def test_a_policy_that_serves_no_version_of_a_model_leaves_the_model_out(client_of):
    client = client_of("specific:2")
    assert {model.name for model in client.get_model_repository_index().models} == {"Several"}
    code, message = refused(client.infer, "Mean", [tensor_of(images(1))])
    assert code == "StatusCode.NOT_FOUND"
    assert "no version at all under version policy specific:2; it serves: none" in message


def test_a_version_that_a_model_is_loaded_with_is_a_whole_number_too(client_of):
    client = client_of()
    client.load_model("Several", config=WITH_VERSION)
    assert answered(client, "") == ("1", "data")
    np.testing.assert_array_equal(client.infer("Several", [tensor_of(images(1))]).as_numpy("data"), images(1))
