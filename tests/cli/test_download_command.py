"""``agent download`` fills the cache; models and datasets then open without a network."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import yaml
from file_server import Answer, FileServer

from inferometer.manifests.files import BUILTIN

DIGITS = BUILTIN / "models" / "DigitsCNN"
DATA = BUILTIN / "datasets" / "digits_validation" / "digits_validation.zip"
FEW = ("--num_file_parts=1", "--warmup_num_file_parts=0", "-b", "32", "--publish=false")


def from_urls(folder: Path, framework: str, url: str, **changes: object) -> dict[str, object]:
    """The manifest of DigitsCNN as RemoteDigits, with its files below a URL, written into ``folder``."""
    content: dict[str, object] = yaml.safe_load((DIGITS / f"{framework}.yml").read_text())
    content["name"] = "RemoteDigits"
    content["model"] = {**content["model"], "base_url": url, **changes}  # type: ignore[dict-item]
    folder.mkdir(exist_ok=True)
    (folder / f"{framework}.yml").write_text(yaml.safe_dump(content))
    return content


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "manifests"


@pytest.fixture
def zoo(file_server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    """A server with DigitsCNN, and manifests for each framework that name its files there."""
    for path in DIGITS.iterdir():
        file_server.serve(f"/zoo/{path.name}", path.read_bytes())
    for framework in ("mxnet", "onnxruntime", "pytorch"):
        from_urls(folder, framework, f"{file_server.url}/zoo")
    monkeypatch.setenv("AGENT_MANIFESTS", str(folder))
    return file_server


def lines(text: str) -> list[list[str]]:
    """The state, size and file name in each line."""
    return [[line[:14].strip(), line.split()[-3], Path(line.split()[-1]).name] for line in text.splitlines()]


def test_each_file_is_downloaded_once_and_then_opens_without_the_server(agent, zoo, tmp_path):
    first = agent("download", "models", "--model_name=remotedigits")
    assert (first.code, first.stderr) == (0, "")
    sizes = {path.name: str(path.stat().st_size) for path in DIGITS.iterdir() if path.suffix != ".yml"}
    assert {name: size for _, size, name in lines(first.stdout)} == sizes
    assert {state for state, _, _ in lines(first.stdout)} == {"downloaded"}
    asked = len(zoo.asked)
    again = agent("download", "models", "--model_name=RemoteDigits")
    assert {state for state, _, _ in lines(again.stdout)} == {"already there"}
    for name in sizes:
        zoo.serve(f"/zoo/{name}", Answer(status=404))
    for framework in ("MXNet", "ONNXRuntime", "PyTorch"):
        ours = agent("predict", "dataset", f"--framework_name={framework}", *FEW)
        found = agent(
            "predict", "dataset", "--model_name=RemoteDigits", f"--framework_name={framework}", *FEW
        )
        assert found.code == 0, found.stderr
        assert found.figure("top-1") == ours.figure("top-1")
    assert len(zoo.asked) == asked


def test_a_model_is_downloaded_when_it_is_opened_and_exported(agent, zoo, tmp_path):
    found = agent("predict", "dataset", "--model_name=RemoteDigits", "--framework_name=PyTorch", *FEW)
    assert found.code == 0, found.stderr
    exported = agent("export", "--model_name=RemoteDigits", "-o", tmp_path / "digits.onnx")
    assert exported.code == 0, exported.stderr
    assert zoo.count("/zoo/digits_cnn.pt") == 1


def test_a_served_agent_downloads_what_it_opens(agent, zoo, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", "from inferometer.client.cli.main import main; main()", "serve", "--port=0"],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    try:
        address = process.stdout.readline().removeprefix("serving on ").strip()
        run = ("predict", "dataset", "--model_name=RemoteDigits", f"--agent={address}", *FEW)
        found = agent(*run, "--framework_name=ONNXRuntime", "-b", "16")
        zoo.serve("/zoo/digits_cnn.pt", Answer(status=404))
        missing = agent(*run, "--framework_name=PyTorch")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert found.code == 0, found.stderr
    assert missing.code == 4
    assert f"{zoo.url}/zoo/digits_cnn.pt cannot be downloaded: the server answered 404" in missing.error
    assert len([asked for asked in zoo.asked if asked.path.startswith("/zoo")]) >= 2


def test_a_file_that_fails_keeps_no_other_from_being_downloaded(agent, zoo, folder):
    zoo.serve("/zoo/digits_cnn-0000.params", b"another")
    zoo.serve("/zoo/digits_cnn.onnx", Answer(status=404))
    answer = agent("download", "models", "--model_name=RemoteDigits")
    assert answer.code == 4
    assert {name for _, _, name in lines(answer.stdout)} == {"digits_cnn-symbol.json", "digits_cnn.pt"}
    wrong, missing = sorted(answer.stderr.splitlines())
    assert "field model.graph_path" in wrong
    assert f"{zoo.url}/zoo/digits_cnn.onnx cannot be downloaded: the server answered 404 Not Found" in wrong
    assert f"{zoo.url}/zoo/digits_cnn-0000.params: is not the file that is meant" in missing


def test_the_choice_can_be_narrowed(agent, zoo):
    answer = agent("download", "models", "--model_name=RemoteDigits", "--framework_name=mxnet")
    assert {name for _, _, name in lines(answer.stdout)} == {
        "digits_cnn-symbol.json",
        "digits_cnn-0000.params",
    }
    none = agent("download", "models", "--model_name=RemoteDigits", "--model_version=2")
    assert (none.code, none.error) == (2, 'agent: model "RemoteDigits" has no version 2; it has: 1.0')


def test_labels_and_archives_are_downloaded_and_checked_too(
    agent, file_server, folder, tmp_path, monkeypatch
):
    with zipfile.ZipFile(tmp_path / "net.zip", "w") as archive:
        archive.write(DIGITS / "digits_cnn.onnx", "inner/net.onnx")
    url = file_server.serve("/net.zip", (tmp_path / "net.zip").read_bytes())
    content = from_urls(folder, "onnxruntime", url, is_archive=True, graph_path="inner/net.onnx")
    parameters = content["output"]["parameters"]
    parameters["features_url"] = file_server.serve("/labels.txt", "\n".join(map(str, range(10))).encode())
    (folder / "onnxruntime.yml").write_text(yaml.safe_dump(content))
    monkeypatch.setenv("AGENT_MANIFESTS", str(folder))
    answer = agent("download", "models", "--model_name=RemoteDigits")
    assert (answer.code, answer.stderr) == (0, "")
    assert [name for _, _, name in lines(answer.stdout)] == ["net.zip", "labels.txt"]
    found = agent("predict", "dataset", "--model_name=RemoteDigits", *FEW)
    assert found.code == 0, found.stderr
    content["model"]["graph_checksum"] = "0" * 32
    (folder / "onnxruntime.yml").write_text(yaml.safe_dump(content))
    wrong = agent("download", "models", "--model_name=RemoteDigits")
    assert wrong.code == 4
    assert 'net.zip: its "inner/net.onnx" is not the file that is meant' in wrong.error


def test_random_weights_need_neither_weights_nor_labels(agent, zoo, folder):
    labels = zoo.serve("/labels.txt", "\n".join("abcdefghij").encode())
    path = folder / "pytorch.yml"
    content = yaml.safe_load(path.read_text())
    content["output"]["parameters"] = {"features_url": labels}
    path.write_text(yaml.safe_dump(content))
    random = (
        "predict",
        "dataset",
        "--model_name=RemoteDigits",
        "--framework_name=PyTorch",
        "--weights=random",
    )
    answer = agent(*random, "--dataset_name=digits_validation", *FEW)
    assert answer.code == 0, answer.stderr
    assert zoo.asked == []


def test_nothing_to_download_is_said(agent):
    models = agent("download", "models", "--model_name=DigitsCNN")
    assert (models.code, models.stderr) == (0, "")
    assert models.stdout == "nothing to download: what the models need (3 manifests) is on this machine\n"
    data = agent("download", "dataset", "--dataset_name=digits_validation")
    assert data.code == 0
    assert data.stdout.startswith("nothing to download: digits_validation is on this machine, at ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give either --model_name, which --model_version can limit, or --all"),
        (("--all", "--model_name=DigitsCNN"), "give either --model_name"),
        (("--all", "--model_version=1.0"), "give either --model_name"),
        (("--model_name=DigitCNN",), 'unknown model "DigitCNN"; did you mean "DigitsCNN"'),
        (("--model_name=DigitsCNN", "--framework_name=MXnett"), 'unknown framework "MXnett"; did you mean'),
    ],
)
def test_what_makes_no_sense_is_one_line(agent, arguments, said):
    answer = agent("download", "models", *arguments)
    assert answer.code == 2
    assert said in answer.error


class TestDatasets:
    @pytest.fixture
    def url(self, file_server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        """Where the digits are; a manifest names that."""
        url = file_server.serve("/data/digits.zip", DATA.read_bytes())
        checksum = hashlib.sha256(DATA.read_bytes()).hexdigest()
        folder.mkdir()
        (folder / "remote.yml").write_text(
            f"{{kind: dataset, name: remote_digits, path: '{url}', checksum: 'sha256:{checksum}'}}"
        )
        monkeypatch.setenv("AGENT_MANIFESTS", str(folder))
        return url

    def test_one_at_a_url_is_downloaded_and_evaluated(self, agent, file_server, url):
        ours = agent("predict", "dataset", *FEW)
        found = agent("predict", "dataset", "--dataset_name=remote_digits", *FEW)
        assert found.code == 0, found.stderr
        assert found.figure("top-1") == ours.figure("top-1")
        answer = agent("download", "dataset", "--dataset_name=remote_digits")
        assert lines(answer.stdout) == [["already there", str(DATA.stat().st_size), "digits.zip"]]
        assert file_server.count("/data/digits.zip") == 1

    def test_one_beside_its_manifest_comes_first(self, agent, file_server, url, folder):
        shutil.copy(DATA, folder / "digits.zip")
        assert agent("predict", "dataset", "--dataset_name=remote_digits", *FEW).code == 0
        assert file_server.asked == []

    def test_one_that_cannot_be_had_is_one_line(self, agent, file_server, url):
        file_server.serve("/data/digits.zip", Answer(status=404))
        for command in (("predict", "dataset", *FEW), ("download", "dataset")):
            answer = agent(*command, "--dataset_name=remote_digits")
            assert answer.code == 4
            assert f"field path: {url} cannot be downloaded: the server answered 404" in answer.error
            assert "put it at " in answer.error

    def test_another_one_is_refused(self, agent, file_server, url):
        file_server.serve("/data/digits.zip", DATA.read_bytes()[:-1])
        answer = agent("predict", "dataset", "--dataset_name=remote_digits", *FEW)
        assert answer.code == 4
        assert f"{url}: is not the file that is meant: its sha256 is " in answer.error


@pytest.mark.usefixtures("children_take_interrupts")
@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        (("download", "models"), signal.SIGINT),
        (("predict", "dataset", *FEW), signal.SIGINT),
        (("predict", "dataset", *FEW), signal.SIGTERM),
    ],
)
def test_an_interrupt_leaves_what_the_next_try_goes_on_with(agent, zoo, tmp_path, arguments, number):
    never = threading.Event()
    content = (DIGITS / "digits_cnn.onnx").read_bytes()
    zoo.serve("/zoo/digits_cnn.onnx", Answer(content, hold=never), Answer(content))
    command = [sys.executable, "-c", "from inferometer.client.cli.main import main; main()", *arguments]
    names = ["--model_name=RemoteDigits", "--framework_name=ONNXRuntime"]
    process = subprocess.Popen([*command, *names], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pause = threading.Event()
    while not any(part.stat().st_size for part in (tmp_path / "cache").rglob("*.part")):
        assert process.poll() is None, process.communicate()
        pause.wait(0.01)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    never.set()
    assert (process.returncode, stdout, stderr.strip()) == (130, "", "agent: interrupted")
    done = agent(*arguments, *names)
    assert done.code == 0, done.stderr
    assert zoo.asked[-1].headers["Range"].startswith("bytes=")
