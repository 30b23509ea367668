"""``agent serve`` with TLS, limits and reachable addresses, and clients that connect to it."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
from pathlib import Path

import pytest
from certificates import Authority

from tests.cli.conftest import COMMAND, Agent, served

FEW = ("predict", "dataset", "--framework_name=ONNXRuntime", "--num_file_parts=1", "--publish=false")
SECRET = "--secret=open sesame"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> tuple[str, str]:
    """The flags of a server's certificate."""
    files = authority.issue("127.0.0.1", "localhost")
    return f"--tls_cert={files.cert}", f"--tls_key={files.key}"


def test_model_is_evaluated_over_mutual_tls_and_the_record_says_so(
    agent: Agent, authority: Authority, tls: tuple[str, str]
) -> None:
    shown = authority.issue("client@example.org", file="client")
    trusting = f"--tls_ca={authority.ca}"
    showing = (trusting, f"--tls_cert={shown.cert}", f"--tls_key={shown.key}")
    with served(*tls, trusting, SECRET) as (address, _):
        done = agent(*FEW, f"--agent=grpcs://{address}", *showing, SECRET)
        assert done.code == 0, done.stderr
        assert f"grpcs://{address}" in done.stdout
        load = (
            *(
                "predict",
                "workload",
                "--framework_name=ONNXRuntime",
                "--initial_qps=20",
                "--min_duration=0.2",
            ),
            *("--min_queries=1", "--publish=false", "--allow_invalid"),
        )
        assert agent(*load, f"--agent={address}", *showing, SECRET).code == 0
        assert agent("status", address, *showing).stdout == "SERVING\n"
        for flags, said in (
            ((trusting, SECRET), "requires a certificate that it trusts"),
            ((*showing, "--secret=wrong"), "requires a secret"),
            ((SECRET,), "speaks TLS only"),
        ):
            refused = agent(*FEW, f"--agent={address}", *flags)
            assert (refused.code, said in refused.error) == (6, True), refused.stderr


def test_tls_of_clients_stands_in_the_environment_or_the_configuration(
    agent: Agent, authority: Authority, tls: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Authority(tmp_path, "other")
    configuration = tmp_path / "config.yaml"
    (tmp_path / "ca.pem").write_bytes(authority.ca.read_bytes())
    (tmp_path / "secret").write_text("open sesame\n", encoding="ascii")
    configuration.write_text("agent_tls:\n  ca: ca.pem\nsecret_file: secret\n", encoding="utf-8")
    with served(*tls, SECRET) as (address, _):
        configured = (*FEW, f"--agent={address}", f"--config={configuration}")
        assert agent(*configured).code == 0
        monkeypatch.setenv("AGENT_TLS_CA", str(other.ca))
        assert "no authority that is trusted here" in agent(*configured).error
        assert agent(*configured, f"--tls_ca={authority.ca}").code == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [((), "has no TLS and no secret"), ((SECRET,), "has no TLS;"), (("--tls",), "has no secret;")],
)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0"])
def test_address_that_others_reach_is_refused_unless_it_is_safe(
    agent: Agent, tls: tuple[str, str], flags: tuple[str, ...], said: str, host: str
) -> None:
    given = [part for flag in flags for part in (tls if flag == "--tls" else (flag,))]
    answer = agent("serve", "--port=0", f"--host={host}", *given)
    assert answer.code == 2
    assert f"host {host} can be reached by others" in answer.error
    assert said in answer.error
    assert "--insecure" in answer.error


def test_insecure_agent_serves_and_says_it_loudly_and_a_safe_one_says_nothing(tls: tuple[str, str]) -> None:
    def warned(*arguments: str) -> str:
        with served("--host=0.0.0.0", *arguments) as (address, process):
            assert address.startswith("0.0.0.0:")
            process.terminate()
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        return errors

    assert "INSECURE: others can reach this agent, which has no TLS and no secret" in warned("--insecure")
    assert "the secret too" in warned("--insecure", SECRET)
    assert warned(*tls, SECRET) == ""


def test_files_of_tls_that_cannot_be_used_are_told_in_one_line(
    agent: Agent, authority: Authority, tls: tuple[str, str], tmp_path: Path
) -> None:
    other = authority.issue("127.0.0.1", file="other")
    text = tmp_path / "text.pem"
    text.write_text("no certificate\n", encoding="ascii")
    cert, key = tls
    for flags, said in (
        ((cert,), "tls_cert is given without tls_key"),
        ((key,), "tls_key is given without tls_cert"),
        ((f"--tls_ca={authority.ca}",), "needs TLS: give tls_cert and tls_key"),
        ((cert, f"--tls_key={other.key}"), f"tls_key {other.key}: is not the key of tls_cert"),
        ((cert, f"--tls_key={text}"), f"tls_key {text}: holds no private key in PEM"),
        ((f"--tls_cert={text}", key), f"tls_cert {text}: holds no certificate in PEM"),
        ((f"--tls_cert={tmp_path}", key), f"tls_cert {tmp_path}: Is a directory"),
        ((cert, key, f"--tls_ca={text}"), f"tls_ca {text}: holds no certificate in PEM"),
        ((cert, f"--tls_key={tmp_path / 'none'}"), "No such file or directory"),
    ):
        answer = agent("serve", "--port=0", *flags)
        assert (answer.code, said in answer.error) == (2, True), answer.stderr
    for flags, said in (
        ((f"--tls_ca={text}",), f"tls_ca {text}: holds no certificate in PEM"),
        ((cert,), "tls_cert is given without tls_key"),
    ):
        answer = agent(*FEW, "--agent=grpcs://127.0.0.1:1", *flags)
        assert (answer.code, said in answer.error) == (2, True), answer.stderr


def test_limits_stand_in_the_configuration_and_flags_go_before(
    agent: Agent, authority: Authority, tls: tuple[str, str], tmp_path: Path
) -> None:
    configuration = tmp_path / "config.yaml"
    cert, key = (flag.partition("=")[2] for flag in tls)
    lines = [f"tls_cert: {cert}", f"tls_key: {key}", "max_inputs: 8", "max_sessions: 1", "max_message_mb: 1"]
    configuration.write_text("\n  ".join(["serving:", *lines]) + "\n", encoding="utf-8")
    with served(f"--config={configuration}") as (address, _):
        remote = (*FEW, f"--agent={address}", f"--tls_ca={authority.ca}")
        assert agent(*remote, "--batch_size=8").code == 0
        refused = agent(*remote, "--batch_size=9")
        assert "has 9 inputs, but the agent takes at most 8" in refused.stderr
    with served(f"--config={configuration}", "--max_inputs=9") as (address, _):
        assert agent(*FEW, f"--agent={address}", f"--tls_ca={authority.ca}", "--batch_size=9").code == 0


def test_names_that_an_agent_answers_to_over_http_stand_in_the_configuration_and_flags_go_before(
    agent: Agent, tmp_path: Path
) -> None:
    configuration = tmp_path / "config.yaml"
    configuration.write_text("serving: {allowed_hosts: [one.example]}", encoding="utf-8")
    base = (f"--config={configuration}", "--http_port=0")
    flag = "--allowed_hosts=two.example,three.example"
    for flags, answered in (((), "one.example"), ((flag,), "two.example")):
        with served(*base, *flags) as (_, process):
            assert process.stdout is not None
            address = process.stdout.readline().removeprefix("http on http://").strip()
            for name in ("one.example", "two.example"):
                connection = http.client.HTTPConnection(address, timeout=60)
                connection.request("GET", "/v2", headers={"Host": name})
                assert connection.getresponse().status == (200 if name == answered else 421)
                connection.close()
    assert "which is not a name" in agent("serve", "--port=0", *base, "--allowed_hosts=a:1").error
    assert "requires --http_port" in agent("serve", "--port=0", "--allowed_hosts=a").error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("serving: {max_pixels: 0}", "serving.max_pixels"),
        ("serving: {max_client_rps: -1}", "serving.max_client_rps"),
        ("serving: {tls_cret: a.pem}", "field serving.tls_cret: is not known"),
        ("serving: {client_burst: 3}", "client_burst requires max_client_rps"),
        ("agent_tls: {cert: [1]}", "agent_tls.cert"),
    ],
)
def test_configuration_that_makes_no_sense_names_the_field(
    agent: Agent, tmp_path: Path, text: str, said: str
) -> None:
    configuration = tmp_path / "config.yaml"
    configuration.write_text(text, encoding="utf-8")
    answer = agent("serve", "--port=0", f"--config={configuration}")
    assert (answer.code, said in answer.error) == (2, True), answer.stderr


def test_secret_file_of_the_command_line_goes_before_a_secret_of_the_environment(
    agent: Agent, secret_agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("open sesame", encoding="ascii")
    monkeypatch.setenv("AGENT_SECRET", "another")
    remote = (*FEW, f"--agent={secret_agent}")
    assert agent(*remote).code == 6
    assert agent(*remote, f"--secret_file={tmp_path / 'secret'}").code == 0


def test_failed_handshake_prints_one_line(authority: Authority, tls: tuple[str, str]) -> None:
    with served(*tls) as (address, process):
        command = [*COMMAND[:3], "status", f"grpcs://{address}"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=dict(os.environ), check=False
        )
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert done.returncode == 6
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert errors == ""
    assert sys.executable == command[0]
