"""Addresses of collectors, as people write them."""

import pytest

from inferometer.agent.tracing.exporting import TraceAddress, TraceLink, TraceProtocol
from inferometer.manifests.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "protocol", "shown"),
    [
        ("jaeger-host", TraceProtocol.OTLP_GRPC, "jaeger-host:4317"),
        ("10.0.0.7:5317", TraceProtocol.OTLP_GRPC, "10.0.0.7:5317"),
        (" localhost:4317 ", TraceProtocol.OTLP_GRPC, "localhost:4317"),
        ("[::1]", TraceProtocol.OTLP_GRPC, "[::1]:4317"),
        ("[::1]:5317", TraceProtocol.OTLP_GRPC, "[::1]:5317"),
        ("http://host", TraceProtocol.OTLP_HTTP, "http://host:4318/v1/traces"),
        ("http://host:80/", TraceProtocol.OTLP_HTTP, "http://host:80/v1/traces"),
        ("http://[::1]:80", TraceProtocol.OTLP_HTTP, "http://[::1]:80/v1/traces"),
        ("HTTPS://Host:443/otlp?tenant=7", TraceProtocol.OTLP_HTTPS, "https://host:443/otlp?tenant=7"),
        ("https://host", TraceProtocol.OTLP_HTTPS, "https://host:4318/v1/traces"),
        ("jaeger://host", TraceProtocol.JAEGER_UDP, "jaeger://host:6831"),
        ("jaeger://host:1", TraceProtocol.JAEGER_UDP, "jaeger://host:1"),
        (
            "jaeger+http://host",
            TraceProtocol.JAEGER_HTTP,
            "jaeger+http://host:14268/api/traces?format=jaeger.thrift",
        ),
        ("jaeger+http://host:1/api/traces", TraceProtocol.JAEGER_HTTP, "jaeger+http://host:1/api/traces"),
        ("zipkin://host", TraceProtocol.ZIPKIN, "zipkin://host:9411/api/v2/spans"),
        ("zipkin://[::1]:1", TraceProtocol.ZIPKIN, "zipkin://[::1]:1/api/v2/spans"),
    ],
)
def test_an_address_names_a_protocol_and_a_place(text: str, protocol: TraceProtocol, shown: str) -> None:
    address = TraceAddress.parse(text)

    assert (address.protocol, str(address)) == (protocol, shown)
    assert TraceAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("localhost:16686", "localhost:4317"),
        ("[::1]:16686", "[::1]:4317"),
        ("http://localhost:16686", "http://localhost:4318/v1/traces"),
        ("http://localhost:16686/v1/traces", "http://localhost:16686/v1/traces"),
    ],
)
def test_the_port_of_jaegers_web_pages_stands_for_the_host(text: str, shown: str) -> None:
    assert str(TraceAddress.parse(text)) == shown


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("host:4317", "http://host:16686/trace/abc"),
        ("https://host", "http://host:16686/trace/abc"),
        ("jaeger://[::1]", "http://[::1]:16686/trace/abc"),
        ("zipkin://host", "http://host:9411/zipkin/traces/abc"),
    ],
)
def test_a_trace_has_a_page_in_jaeger(text: str, url: str) -> None:
    assert TraceAddress.parse(text).trace_url("abc") == url


@pytest.mark.parametrize(
    ("text", "is_loopback"),
    [
        *(("localhost", True), ("127.0.0.9:1", True), ("http://[::1]", True), ("my.localhost.", True)),
        *(("host", False), ("10.0.0.1", False), ("[fd00::1]", False), ("localhost.net", False)),
    ],
)
def test_what_is_on_this_machine_is_known(text: str, is_loopback: bool) -> None:
    assert TraceAddress.parse(text).is_loopback is is_loopback


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://host:1/x", "https://host:1/x"),
        ("jaeger+http://[::1]", "http://[::1]:14268/api/traces?format=jaeger.thrift"),
    ],
)
def test_http_collectors_have_a_url(text: str, url: str) -> None:
    assert TraceAddress.parse(text).url == url


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "://host",
            "ftp://host",
            "grpc://host",
            "http://",
            "http:///path",
            "host/path",
            "-host",
            "a b",
        ),
        *(
            "host?x",
            "http://host#x",
            "jaeger://host/path",
            "jaeger://host?x",
            "[::1",
            "ho\nst",
            "h\x00",
            "hôte",
        ),
        *("http://http://host", "a..b", "host-", "x" * 64),
    ],
)
def test_what_is_no_address_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^tracer address .*: allowed: HOST") as refused:
        TraceAddress.parse(text)

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["host:0", "host:65536", "host:-1", "host:", "host:4317x", "http://host:x"])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"the port must be 1 to 65535$"):
        TraceAddress.parse(text)


@pytest.mark.parametrize("text", ["::1", "fe80::1:4317", "http://::1"])
def test_an_ipv6_address_without_brackets_is_refused_with_how_it_stands(text: str) -> None:
    with pytest.raises(ConfigurationError, match="must be in brackets, such as"):
        TraceAddress.parse(text)


@pytest.mark.parametrize("text", ["http://user:secret@host", "user:secret@host:4317"])
def test_a_password_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigurationError, match="or a password") as refused:
        TraceAddress.parse(text)

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://localhost:16686", "http://localhost:16686/trace/abc"),
        ("https://jaeger.lab/ui/", "https://jaeger.lab/ui/trace/abc"),
        ("https://grafana/explore?id={trace_id}&x={y}", "https://grafana/explore?id=abc&x={y}"),
    ],
)
def test_a_link_is_to_a_jaeger_or_as_its_template_says(text: str, url: str) -> None:
    assert TraceLink.parse(text).of("abc") == url


@pytest.mark.parametrize("text", ["", "jaeger", "ftp://host", "http://", "http://host:port", "http://a b"])
def test_what_is_no_link_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="trace url"):
        TraceLink.parse(text)
