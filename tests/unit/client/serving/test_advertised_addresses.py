"""Whether a served agent is published, and with which address."""

import pytest

from inferometer.client.serving.agent import advertised_address, is_published
from inferometer.manifests.errors import ConfigurationError


@pytest.mark.parametrize(
    ("advertise", "database", "published"),
    [
        (None, None, False),
        (None, "db:27017", True),
        ("auto", None, True),
        ("host:1", None, True),
        ("none", "db:27017", False),
        (" None ", "db:27017", False),
    ],
)
def test_agent_is_published_where_it_or_a_database_is_asked_for(advertise, database, published):
    assert is_published(advertise, database) is published


@pytest.mark.parametrize(
    ("advertise", "bound", "address"),
    [
        (None, "127.0.0.1:50051", "127.0.0.1:50051"),
        ("auto", "10.1.2.3:5", "10.1.2.3:5"),
        (None, "0.0.0.0:50051", "gpu-host:50051"),
        ("AUTO", "[::]:50051", "gpu-host:50051"),
        ("outside:7", "0.0.0.0:50051", "outside:7"),
        ("outside", "0.0.0.0:50051", "outside:50051"),
        ("[::1]", "[::]:50051", "[::1]:50051"),
    ],
)
def test_address_is_the_given_or_the_bound_one(advertise, bound, address):
    assert advertised_address(advertise, bound, "gpu-host") == address


@pytest.mark.parametrize("advertise", ["host:0", "a b", "host:port", "host:1,other:2", ""])
def test_address_that_is_none_is_refused(advertise):
    with pytest.raises(ConfigurationError, match="is not an address; allowed: HOST:PORT, HOST, auto or none"):
        advertised_address(advertise or "?", "0.0.0.0:1", "gpu-host")
