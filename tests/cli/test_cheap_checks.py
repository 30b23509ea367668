"""What is cheap to check is checked before anything is downloaded: the file server gets no request."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml
from file_server import FileServer

from inferometer.agent.inference.registry import Registry
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.files import BUILTIN
from tests.cli.conftest import Agent

MODEL, DATA = BUILTIN / "models" / "DigitsCNN", BUILTIN / "datasets" / "digits_validation"
FRAMEWORKS = ("MXNet", "ONNXRuntime", "PyTorch")
REMOTE = ("--model_name=RemoteDigits", "--dataset_name=remote_digits")
NO_SUCH_GPU = ("--gpu", "--gpu_device_id=63")  # of which no machine has so many
PREDICTIONS = (("dataset", "-b", "4"), ("workload", "--duration=1"), ("max-qps", "--latency_bound=50"))


@pytest.fixture(autouse=True)
def asked(file_server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    """A server that has a model, with its labels and for each framework, and a dataset."""
    folder, labels = tmp_path / "manifests", b"\n".join(b"%d" % number for number in range(10))
    folder.mkdir()
    file_server.serve("/labels.txt", labels)
    for path in (*MODEL.iterdir(), *DATA.iterdir()):
        file_server.serve(f"/{path.name}", path.read_bytes())
    for framework in FRAMEWORKS:
        content = yaml.safe_load((MODEL / f"{framework.lower()}.yml").read_text())
        content |= {"name": "RemoteDigits", "dataset": "remote_digits"}
        content["model"]["base_url"] = file_server.url
        content["output"]["parameters"]["features_url"] = f"{file_server.url}/labels.txt"
        content["output"]["parameters"]["features_checksum"] = f"sha256:{hashlib.sha256(labels).hexdigest()}"
        (folder / f"{framework}.yml").write_text(yaml.safe_dump(content))
    data = yaml.safe_load(next(DATA.glob("*.yml")).read_text())
    data |= {"name": "remote_digits", "path": f"{file_server.url}/digits_validation.zip"}
    (folder / "data.yml").write_text(yaml.safe_dump(data))
    monkeypatch.setenv("AGENT_MANIFESTS", str(folder))
    return file_server


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("command", PREDICTIONS, ids=lambda command: command[0])
def test_a_missing_gpu(agent: Agent, asked: FileServer, command: tuple[str, ...], framework: str) -> None:
    answer = agent("predict", *command, *REMOTE, f"--framework_name={framework}", *NO_SUCH_GPU)
    assert answer.code == 3
    assert "cannot use gpu:63" in answer.error
    assert asked.asked == []


def test_a_missing_gpu_for_urls(agent: Agent, asked: FileServer, tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text(f"{asked.url}/image.png\n")
    list_of_urls = f"--urls_file_path={tmp_path / 'urls.txt'}"
    answer = agent("predict", "urls", REMOTE[0], list_of_urls, *NO_SUCH_GPU)
    assert "cannot use gpu:63" in answer.error
    assert asked.asked == []


@pytest.mark.parametrize("framework", ["MXNet", "PyTorch"])
def test_a_missing_gpu_for_a_training(agent: Agent, asked: FileServer, framework: str) -> None:
    choice = ("--model=RemoteDigits", REMOTE[1], "--weights=pretrained", f"--framework_name={framework}")
    answer = agent("bench", "training", *choice, "--gpus=63")
    assert answer.code == 3
    assert "cannot use gpu:63" in answer.error
    assert asked.asked == []


def test_a_missing_gpu_of_a_served_agent(agent: Agent, asked: FileServer, tmp_path: Path) -> None:
    server = AgentServer(Catalog([tmp_path / "manifests"]), Registry(), ServerOptions(port=0))
    server.start()
    try:
        choice = (f"--agent={server.address}", REMOTE[0], "--synthetic", *NO_SUCH_GPU)
        answer = agent("predict", "workload", "--duration=1", *choice)
    finally:
        server.stop(0)
    assert "cannot use gpu:63" in answer.error
    assert asked.asked == []


@pytest.mark.parametrize("command", PREDICTIONS, ids=lambda command: command[0])
def test_a_precision_that_a_file_has_not(agent: Agent, asked: FileServer, command: tuple[str, ...]) -> None:
    answer = agent("predict", *command, *REMOTE, "--framework_name=ONNXRuntime", "--dtype=bfloat16")
    assert "bfloat16" in answer.error
    assert asked.asked == []


@pytest.mark.parametrize("command", PREDICTIONS, ids=lambda command: command[0])
def test_a_missing_dataset(agent: Agent, asked: FileServer, command: tuple[str, ...], tmp_path: Path) -> None:
    answer = agent("predict", *command, REMOTE[0], f"--dataset_path={tmp_path / 'nowhere.npz'}")
    assert "nowhere.npz" in answer.error
    assert asked.asked == []


def test_a_dataset_that_the_model_names_and_nobody_has(
    agent: Agent, asked: FileServer, tmp_path: Path
) -> None:
    path = tmp_path / "manifests" / "data.yml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"path": "nowhere.zip"}))
    for command in PREDICTIONS:
        answer = agent("predict", *command, REMOTE[0])
        assert "nowhere.zip" in answer.error
    assert asked.asked == []


@pytest.mark.parametrize("command", PREDICTIONS, ids=lambda command: command[0])
def test_a_database_out_of_reach(agent: Agent, asked: FileServer, command: tuple[str, ...]) -> None:
    # nothing listens on port 9 of this machine, the "discard" service
    address = "--database_address=mongodb://127.0.0.1:9/?serverSelectionTimeoutMS=100"
    answer = agent("predict", *command, *REMOTE, address)
    assert answer.code == 5
    assert asked.asked == []


def test_predictions_that_are_missing(agent: Agent, asked: FileServer, tmp_path: Path) -> None:
    answer = agent("score", str(tmp_path / "found.csv"), "--task=classification", REMOTE[1])
    assert "found.csv" in answer.error
    assert asked.asked == []
