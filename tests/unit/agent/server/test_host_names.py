"""Which names of a server the headers of a request may have."""

import pytest

from inferometer.agent.server.admission import HostNames
from inferometer.manifests.errors import ConfigurationError

LOOPBACK = HostNames.of(None, "127.0.0.1", secret=False)


@pytest.mark.parametrize(
    ("host", "admitted"),
    [
        ("localhost", True),
        ("LOCALHOST.:8000", True),
        ("a.localhost:8000", True),
        ("127.0.0.1:8000", True),
        ("192.0.2.1", True),
        ("[::1]:8000", True),
        ("[2001:db8::1]", True),
        (None, True),
        ("", True),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("evillocalhost", False),
        ("127.0.0.1@evil.example", False),
        (":8000", False),
    ],
)
def test_loopback_server_without_a_secret_answers_to_its_own_names(host: str | None, admitted: bool) -> None:
    assert LOOPBACK.admits(host) is admitted


def test_name_that_the_server_was_given_is_its_own() -> None:
    names = HostNames.of(None, "LocalHost", secret=False)
    assert names.admits("localhost:1")
    assert not names.admits("evil.example")


@pytest.mark.parametrize(("listens", "secret"), [("127.0.0.1", True), ("0.0.0.0", False), ("", False)])
def test_other_servers_answer_to_any_name(listens: str, secret: bool) -> None:
    assert HostNames.of(None, listens, secret=secret).admits("service-1:8000")
    assert not HostNames.of(("a.org",), listens, secret=secret).admits("service-1:8000")
    assert HostNames.of(("*",), listens, secret=secret).admits("service-1:8000")


@pytest.mark.parametrize(
    ("origin", "host", "admitted"),
    [
        (None, "127.0.0.1:8000", True),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("http://127.0.0.1:3000", "127.0.0.1:8000", False),
        ("http://evil.example", "127.0.0.1:8000", False),
        ("null", "127.0.0.1:8000", False),
        ("https://models.example.org", "127.0.0.1:8000", True),
    ],
)
def test_origin_is_the_host_or_a_name_that_is_allowed(origin: str | None, host: str, admitted: bool) -> None:
    names = HostNames.of(("models.example.org",), "127.0.0.1", secret=False)
    assert names.admits_origin(origin, host) is admitted


@pytest.mark.parametrize("name", ["a.org:8000", "http://a.org", "", "a b", "*.a.org"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r'allowed_hosts has ".*", which is not a name'):
        HostNames.of((name,), "127.0.0.1", secret=False)
