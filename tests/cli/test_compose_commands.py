"""The commands of docker/compose.yml, run on this machine with local addresses."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Agent, served
from tests.contract.store_fixtures import mongodb_backend
from tests.integration.trace_collectors import HOST, Seen, otlp_grpc

COMPOSE = Path(__file__).parents[2] / "docker" / "compose.yml"
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
EVALUATIONS = [name for name in SERVICES if name.startswith("evaluate-")]


def test_the_evaluations_are_done_by_served_agents_and_end_in_the_database_and_the_trace_server(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret_file = tmp_path / "agent_secret"
    secret_file.write_text("open sesame\n", encoding="ascii")
    monkeypatch.setenv("AGENT_SECRET_FILE", str(secret_file))
    seen = Seen()
    with ExitStack() as stack:
        jaeger = f"{HOST}:{stack.enter_context(otlp_grpc(seen))}"
        mongodb = stack.enter_context(mongodb_backend(tmp_path)).address
        for name in EVALUATIONS:
            framework = name.removeprefix("evaluate-")
            program, *serve = (word.replace("jaeger:4317", jaeger) for word in SERVICES[framework]["command"])
            serve[serve.index("--http_port") + 1] = "0"  # as all of them are on this machine
            address, _ = stack.enter_context(served(*serve))
            port = address.rpartition(":")[2]
            here = {
                f"{framework}:50051": f"{HOST}:{port}",
                "=mongodb": f"={mongodb}",
                "=jaeger": f"={jaeger}",
            }
            command = SERVICES[name]["command"]
            for inside, outside in here.items():
                command = [word.replace(inside, outside) for word in command]

            assert program == "serve"
            assert agent("status", f"{HOST}:{port}").stdout.startswith("SERVING\n")
            answer = agent(*command)
            assert answer.code == 0, answer.stderr
            assert answer.figure("failures") == "0"

        # as the seed asks for what it has published
        reports = ["--model_name=DigitsCNN", "--database_name=inferometer", f"--database_address={mongodb}"]
        rows = agent("info", "evaluation", "accuracy", *reports, "-f", "csv").rows
    assert [row["evaluated_inputs"] for row in rows] == ["450"] * len(EVALUATIONS)
    names = [span.name for span in seen.spans.values()]
    assert names.count("evaluation") == len(EVALUATIONS) == 3
    assert names.count("predict") >= 3 * 450 // 16
