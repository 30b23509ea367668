"""``agent serve`` with metrics and a JSON log, in a separate process."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path

import pytest
from certificates import Authority

from tests.cli.conftest import Agent, served

SECRET = "open sesame"
TOO_LONG = "a" * 70
"""No label of a host's name may be so long."""


def test_an_agent_tells_metrics_and_logs_each_call_as_json(agent: Agent) -> None:
    with served("--metrics_port=0", "--log_format=json", "-v", f"--secret={SECRET}") as (address, process):
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("metrics on ").strip()
        assert agent("status", address, f"--secret={SECRET}").code == 0
        assert agent("status", address, "--secret=wrong").code == 0
        with urllib.request.urlopen(url, timeout=30) as answer:
            metrics = answer.read().decode()
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert (
        'inferometer_requests_total{code="OK",method="inferometer.v1.RegistryService/Status",model=""} 1.0'
        in metrics
    )
    lines = [json.loads(line) for line in log.splitlines()]
    ended = [line["code"] for line in lines if line.get("method") == "inferometer.v1.RegistryService/Status"]
    assert ended == ["OK", "UNAUTHENTICATED"]
    assert SECRET not in log
    assert SECRET not in metrics


def test_port_of_the_metrics_that_is_taken_is_one_clear_error(agent: Agent, served_agent: str) -> None:
    answer = agent("serve", "--port=0", f"--metrics_port={served_agent.rpartition(':')[2]}")
    assert answer.code == 2
    assert f"cannot listen on {served_agent} for metrics" in answer.error


def test_metrics_are_for_this_machine_alone_wherever_the_agent_listens() -> None:
    with served("--host=0.0.0.0", "--insecure", "--metrics_port=0") as (_, process):
        assert process.stdout is not None
        assert process.stdout.readline().startswith("metrics on http://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert "metrics" not in errors


def test_metrics_that_others_can_read_are_warned_of() -> None:
    with served("--metrics_port=0", "--metrics_host=0.0.0.0") as (address, process):
        assert address.startswith("127.0.0.1:")
        assert process.stdout is not None
        port = process.stdout.readline().rpartition(":")[2].split("/")[0]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    [line] = errors.splitlines()
    assert f"INSECURE: others can read the metrics at 0.0.0.0:{port}, which have no TLS and no secret" in line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--metrics_host=0.0.0.0"], "--metrics_host requires --metrics_port"),
        (["--metrics_port=0", f"--metrics_host={TOO_LONG}"], f"cannot listen on {TOO_LONG}:0 for metrics"),
        ([f"--host={TOO_LONG}", "--insecure"], f"cannot listen on host {TOO_LONG}"),
    ],
)
def test_address_that_is_none_is_one_clear_error(agent: Agent, flags: list[str], said: str) -> None:
    answer = agent("serve", "--port=0", *flags)
    assert (answer.code, said in answer.error) == (2, True), answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_host_that_is_none_is_one_clear_error_of_a_secure_agent_too(agent: Agent, tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("127.0.0.1")
    secure = (f"--tls_cert={files.cert}", f"--tls_key={files.key}", f"--secret={SECRET}")
    answer = agent("serve", f"--host={TOO_LONG}", *secure)
    assert (answer.code, f"cannot listen on {TOO_LONG}:50051" in answer.error) == (2, True), answer.stderr
