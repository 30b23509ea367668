"""``agent serve`` as a process of its own, and ``agent predict dataset --agent`` against it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")
COMMAND = [sys.executable, "-c", "from client.main import main; main()", "serve", "--port=0"]


@contextmanager
def served(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """An agent on a free port; its address and its process."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving on "), process.communicate(timeout=10)
        yield line.removeprefix("serving on ").strip(), process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_remote_run_gives_the_same_accuracy_as_a_local_one(agent):
    with served() as (address, process):
        for framework in FRAMEWORKS:
            common = ("predict", "dataset", f"--framework_name={framework}", "--batch_size=32")
            local = agent(*common)
            remote = agent(*common, f"--agent={address}")
            assert remote.code == 0, remote.stderr
            assert address in remote.error
            for figure in ("top-1", "top-5", "failures"):
                assert remote.figure(figure) == local.figure(figure)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    rows = agent("info", "evaluation", "accuracy", "-f", "csv").rows
    assert len(rows) == 2 * len(FRAMEWORKS)
    assert {(row["top1_accuracy"], row["evaluated_inputs"]) for row in rows} == {
        (rows[0]["top1_accuracy"], "450")
    }


def test_agent_address_may_stand_in_the_environment(agent, monkeypatch):
    with served() as (address, _):
        monkeypatch.setenv("AGENT_ADDRESS", address)
        answer = agent("predict", "dataset", "--num_file_parts=1", "--publish=false")
    assert answer.code == 0
    assert address in answer.error


def test_corrupt_image_fails_alike_on_a_remote_agent(agent, tmp_path):
    from PIL import Image

    for label in ("0", "1"):
        (tmp_path / label).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / label / f"{label}.png")
    (tmp_path / "1" / "2.png").write_bytes(b"no image")
    common = ("predict", "dataset", "--dataset_path", tmp_path, "-b", "1", "--publish=false")
    local = agent(*common)
    with served() as (address, _):
        remote = agent(*common, f"--agent={address}")
    assert (local.code, remote.code) == (1, 1)
    assert remote.figure("failures") == local.figure("failures") == "1"
    assert remote.stderr.splitlines()[-1] == local.stderr.splitlines()[-1]


def test_secret_is_asked_for_and_taken_from_flag_or_environment(agent, monkeypatch):
    few = ("predict", "dataset", "--num_file_parts=1", "--publish=false")
    with served("--secret=open sesame") as (address, _):
        refused = agent(*few, f"--agent={address}")
        assert refused.code == 6
        assert "secret" in refused.error
        assert agent(*few, f"--agent={address}", "--secret=wrong").code == 6
        assert agent(*few, f"--agent={address}", "--secret=open sesame").code == 0
        monkeypatch.setenv("AGENT_SECRET", "open sesame")
        assert agent(*few, f"--agent={address}").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("--model_name=DigitCNN",), 2, 'did you mean "DigitsCNN"?'),
        (("--framework_name=pytroch",), 2, 'did you mean "PyTorch"?'),
        (("--gpu", "--framework_name=MXNet"), 3, "gpu:0"),
        (("--model_version=7",), 2, "it has: 1.0"),
    ],
)
def test_error_of_the_agent_is_the_one_of_a_local_run(agent, arguments, code, part):
    local = agent("predict", "dataset", *arguments)
    with served() as (address, _):
        remote = agent("predict", "dataset", f"--agent={address}", *arguments)
    assert (local.code, remote.code) == (code, code)
    assert part in remote.error
    assert local.error.removeprefix("agent: ") in remote.error


def test_second_agent_on_a_port_is_refused(agent):
    with served() as (address, _):
        answer = agent("serve", f"--port={address.rpartition(':')[2]}")
    assert answer.code == 2
    assert address in answer.error
