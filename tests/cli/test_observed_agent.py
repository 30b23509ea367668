"""``agent serve`` with metrics and a log in JSON, as a process of its own."""

from __future__ import annotations

import json
import signal
import urllib.request

from tests.cli.conftest import Agent
from tests.cli.test_serve import served

SECRET = "open sesame"


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
        'inferscope_requests_total{code="OK",method="inferscope.v1.Registry/Status",model=""} 1.0' in metrics
    )
    lines = [json.loads(line) for line in log.splitlines()]
    ended = [line["code"] for line in lines if line.get("method") == "inferscope.v1.Registry/Status"]
    assert ended == ["OK", "UNAUTHENTICATED"]
    assert SECRET not in log
    assert SECRET not in metrics


def test_port_of_the_metrics_that_is_taken_is_one_clear_error(agent: Agent) -> None:
    with served() as (address, _):
        answer = agent("serve", "--port=0", f"--metrics_port={address.rpartition(':')[2]}")
    assert answer.code == 2
    assert f"cannot listen on {address} for metrics" in answer.error
