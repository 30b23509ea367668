"""The examples of docs/open-inference.md, run as written against an agent with a secret."""

from __future__ import annotations

import re
from pathlib import Path

from inferometer.agent.inference.registry import Registry
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.manifests.catalog import Catalog

PAGE = Path(__file__).parents[2] / "docs" / "open-inference.md"


def test_the_examples_predict_on_an_agent_with_a_secret(capsys) -> None:
    examples = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    options = ServerOptions(port=0, secret="open sesame", shared_memory=True)
    names = {"SECRET": "open sesame"}
    with AgentServer(Catalog(), Registry(), options) as agent:
        for example in examples:
            assert "127.0.0.1:50051" in example
            exec(example.replace("127.0.0.1:50051", agent.address), names)

    assert capsys.readouterr().out == "(1, 1000)\n add Your own attrib(1, 1000)\n"
