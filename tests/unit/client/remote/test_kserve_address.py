"""Addresses of models on servers of the Open Inference Protocol."""

import pytest

from inferometer.client.remote.address import AgentAddress, KServeAddress, is_kserve
from inferometer.manifests.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "host", "name", "version", "secure"),
    [
        ("kserve://gpu-1:8001", "gpu-1", None, None, False),
        (" KServe://gpu-1:8001/ ", "gpu-1", None, None, False),
        ("kserve://[::1]:8001/ResNet50", "[::1]", "ResNet50", None, False),
        ("kserves://gpu-1:8001/ResNet50@MXNet/2", "gpu-1", "ResNet50@MXNet", "2", True),
        ("KServe+HTTP://gpu-1:8001/ResNet50", "gpu-1", "ResNet50", None, False),
        ("kserve+https://[::1]:8001", "[::1]", None, None, True),
    ],
)
def test_an_address_names_a_server_and_may_name_a_model(text, host, name, version, secure):
    address = KServeAddress.parse(text)

    assert is_kserve(text)
    assert (address.agent.host, address.agent.port) == (host, 8001)
    assert (address.model_name, address.model_version) == (name, version)
    assert address.agent.secure is (True if secure else None)
    assert address.http == ("+http" in text.casefold())
    assert KServeAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "kserve://",
        "kserve://host",
        "kserve://host:0",
        "kserve:host:1",
        "kserve://a:1/b/c/d",
        "kserve://a:1,b:2",
        "kserve+http://host",
    ],
)
def test_what_is_no_address_is_refused_with_the_form_of_one(text):
    with pytest.raises(ConfigurationError, match="is not kserve://host:port, kserve://host:port/model or"):
        KServeAddress.parse(text)


def test_credentials_in_an_address_are_not_repeated():
    with pytest.raises(ConfigurationError) as error:
        KServeAddress.parse("kserve://me:hidden@host:8001")

    assert "hidden" not in str(error.value)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("parse", [AgentAddress.parse, KServeAddress.parse])
def test_the_time_to_refuse_a_long_address_does_not_grow_with_its_square(parse):
    with pytest.raises(ConfigurationError, match="agent address"):
        parse("a" * 1_000_000)


@pytest.mark.parametrize("text", ["host:8001", "grpcs://host:8001", "any", "gpu=H100", "kserve"])
def test_addresses_of_agents_are_not_of_such_servers(text):
    assert not is_kserve(text)
    assert AgentAddress.parse("host:8001").secure is None
