"""A user's own architectures: the example of docs/manifests.md as written, and invalid files."""

from __future__ import annotations

import hashlib
import os
from contextlib import closing
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from inferometer.client.api.invocation import DEFAULT_DATABASE
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_store
from tests.cli.conftest import served
from tests.page_blocks import blocks

DOCUMENT = Path(__file__).parents[2] / "docs" / "manifests.md"
FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")
NETS = {"PyTorch": "pytorch", "MXNet": "mxnet", "ONNXRuntime": "pytorch"}
RUN = ("predict", "dataset", "--model_name=TinyNet", "--weights=random", "--num_file_parts=4")


def example() -> tuple[dict[str, str], list[str]]:
    """The files of the document's example by name, and its command."""
    files = {block.value: block.text for block in blocks(DOCUMENT) if block.key == "file"}
    (command,) = (typed for block in blocks(DOCUMENT) for typed in block.commands if "TinyNet" in typed.line)
    return files, command.words[1:]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files of the example, for every framework."""
    files, _ = example()
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    manifest = files["my_models/tiny_net.yml"]
    for framework in FRAMEWORKS[1:]:
        text = manifest.replace("name: PyTorch", f"name: {framework}")
        (tmp_path / "my_models" / f"{framework}.yml").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evaluation() -> Evaluation:
    """The one that was published last."""
    with closing(open_store(None, DEFAULT_DATABASE, Path(os.environ["AGENT_DATA_DIR"]))) as store:
        return store.find(EvaluationFilter(limit=1))[0]


def checksum(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_the_example_is_whole() -> None:
    files, command = example()
    assert list(files) == [
        "my_architectures/pytorch/tiny_net.py",
        "my_architectures/mxnet/tiny_net.py",
        "my_models/tiny_net.yml",
        "my.yaml",
    ]
    assert "--config=my.yaml" in command


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_example_runs_as_written_and_records_the_file(agent, folder: Path, framework: str) -> None:
    _, command = example()
    before = {path for path in folder.rglob("*") if "my_architectures" in path.parts}
    answer = agent(*[word.replace("PyTorch", framework) for word in command], "--time_budget=1")
    assert answer.code == 0, answer.stderr
    assert answer.figure("accuracy") == "not counted: the weights are random (seed 0)"
    published = evaluation()
    file = folder / "my_architectures" / NETS[framework] / "tiny_net.py"
    assert dict(published.system.checksums) == {"architecture": checksum(file)}
    assert {path for path in folder.rglob("*") if "my_architectures" in path.parts} == before


def test_a_served_agent_builds_its_own_file_and_says_which(
    agent, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_ARCHITECTURES", str(folder / "my_architectures"))
    with served(f"--manifests={folder / 'my_models'}") as (address, _):
        monkeypatch.delenv("AGENT_ARCHITECTURES")
        answer = agent(
            *RUN, "--framework_name=PyTorch", f"--agent={address}", "--dataset_name=digits_validation"
        )
    assert answer.code == 0, answer.stderr
    file = folder / "my_architectures" / "pytorch" / "tiny_net.py"
    assert evaluation().system.checksums["architecture"] == checksum(file)


def test_it_is_exported_too(agent, folder: Path) -> None:
    path = folder / "tiny.onnx"
    answer = agent("--config", "my.yaml", "export", "--model_name=TinyNet", "--weights=random", "-o", path)
    assert answer.code == 0, answer.stderr
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"data": np.ones((3, 1, 16, 16), np.float32)})
    assert scores.shape == (3, 10)


def test_the_environments_directories_go_before_the_configurations(
    agent, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = folder / "other" / "pytorch" / "tiny_net.py"
    other.parent.mkdir(parents=True)
    text = (folder / "my_architectures" / "pytorch" / "tiny_net.py").read_text()
    other.write_text(f"# another one\n{text}")
    monkeypatch.setenv("AGENT_ARCHITECTURES", f"{folder / 'my_models'}:{folder / 'other'}:")
    answer = agent("--config", "my.yaml", *RUN, "--framework_name=PyTorch")
    assert answer.code == 0, answer.stderr
    assert evaluation().system.checksums["architecture"] == checksum(other)


@pytest.mark.parametrize(
    ("framework", "text", "parts"),
    [
        (
            "PyTorch",
            "class TinyNet:\n    implements = 'tiny_net'\n",
            ["TinyNet, which is not a torch.nn.Module"],
        ),
        ("ONNXRuntime", "import nowhere_to_be_found\n", ["tiny_net.py, line 1: ModuleNotFoundError"]),
        (
            "MXNet",
            "class TinyNet:\n    implements = 'tiny_net'\n",
            ["TinyNet, which is not a gluon.HybridBlock"],
        ),
        ("MXNet", "def (\n", ["tiny_net.py, line 1: SyntaxError"]),
        (
            "MXNet",
            "from mxnet import gluon\nclass T(gluon.HybridBlock):\n    implements = 'tiny_net'\n"
            "    def hybrid_forward(self, F, data):\n        return F.relu(dada)\n",
            ["TinyNet", "dada"],
        ),
        (
            "PyTorch",
            "from torch import nn\nclass T(nn.Module):\n    implements = 'tiny_net'\n"
            "    def forward(self, data):\n        return dada\n",
            ["TinyNet", "dada"],
        ),
        ("PyTorch", "class Other:\n    implements = 'other'\n", ['implements = "tiny_net"', '"other"']),
    ],
)
def test_a_file_that_is_wrong_is_one_line(
    agent, folder: Path, framework: str, text: str, parts: list[str]
) -> None:
    (folder / "my_architectures" / NETS[framework] / "tiny_net.py").write_text(text)
    answer = agent("--config", "my.yaml", *RUN, f"--framework_name={framework}")
    assert answer.code in (1, 4)
    last = answer.stderr.splitlines()[-1]
    assert "Traceback" not in answer.stderr
    for part in parts:
        assert part in last


@pytest.mark.parametrize(
    ("configuration", "code", "part"),
    [
        ("manifests: [my_models]\n", 4, 'unknown PyTorch architecture "tiny_net"'),
        ("manifests: [my_models]\narchitectures: [nowhere]\n", 2, "nowhere does not exist"),
        ("manifests: [my_models]\narchitectures: nowhere\n", 2, "allowed: a list"),
    ],
)
def test_what_is_not_found_is_one_line(agent, folder: Path, configuration: str, code: int, part: str) -> None:
    (folder / "my.yaml").write_text(configuration)
    answer = agent("--config", "my.yaml", *RUN, "--framework_name=PyTorch")
    assert answer.code == code
    assert part in answer.error


def test_what_needs_no_architecture_does_without_the_directories(agent, folder: Path) -> None:
    (folder / "my.yaml").write_text("manifests: [my_models]\narchitectures: [nowhere]\n")
    assert agent("--config", "my.yaml", "info", "models").code == 0
