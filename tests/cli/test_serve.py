"""``agent serve`` in a separate process, and ``agent predict dataset --agent`` against it."""

from __future__ import annotations

import pytest

FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")
ONNX = "--framework_name=ONNXRuntime"
"""For what any framework shows: the agent starts soonest with it."""


def test_remote_run_gives_the_same_accuracy_as_a_local_one(agent, served_agent):
    for framework in FRAMEWORKS:
        common = (
            "predict",
            "dataset",
            "--num_file_parts=-1",
            f"--framework_name={framework}",
            "--batch_size=32",
        )
        local = agent(*common)
        remote = agent(*common, f"--agent={served_agent}")
        assert remote.code == 0, remote.stderr
        assert served_agent in remote.stdout.splitlines()[0]
        for figure in ("top-1", "top-5", "failures"):
            assert remote.figure(figure) == local.figure(figure)
    rows = agent("info", "evaluation", "accuracy", "-f", "csv").rows
    assert len(rows) == 2 * len(FRAMEWORKS)
    assert {(row["top1_accuracy"], row["evaluated_inputs"]) for row in rows} == {
        (rows[0]["top1_accuracy"], "450")
    }


def test_agent_address_may_stand_in_the_environment(agent, served_agent, monkeypatch):
    monkeypatch.setenv("AGENT_ADDRESS", served_agent)
    answer = agent("predict", "dataset", ONNX, "--num_file_parts=1", "--publish=false")
    assert answer.code == 0
    assert served_agent in answer.stdout.splitlines()[0]


def test_corrupt_image_fails_alike_on_a_remote_agent(agent, served_agent, tmp_path):
    from PIL import Image

    for label in ("0", "1"):
        (tmp_path / label).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / label / f"{label}.png")
    (tmp_path / "1" / "2.png").write_bytes(b"no image")
    common = (
        "predict",
        "dataset",
        "--num_file_parts=-1",
        ONNX,
        "--dataset_path",
        tmp_path,
        "-b",
        "1",
        "--publish=false",
    )
    local = agent(*common)
    remote = agent(*common, f"--agent={served_agent}")
    assert (local.code, remote.code) == (1, 1)
    assert remote.figure("failures") == local.figure("failures") == "1"
    assert remote.stderr.splitlines()[-1] == local.stderr.splitlines()[-1]


def test_secret_is_asked_for_and_taken_from_flag_or_environment(agent, secret_agent, monkeypatch):
    few = ("predict", "dataset", ONNX, "--num_file_parts=1", "--publish=false", f"--agent={secret_agent}")
    refused = agent(*few)
    assert refused.code == 6
    assert "secret" in refused.error
    assert agent(*few, "--secret=wrong").code == 6
    assert agent(*few, "--secret=open sesame").code == 0
    monkeypatch.setenv("AGENT_SECRET", "open sesame")
    assert agent(*few).code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("--model_name=DigitCNN",), 2, 'did you mean "DigitsCNN"'),
        (("--framework_name=pytroch",), 2, 'did you mean "PyTorch"?'),
        (("--gpu", "--framework_name=MXNet"), 3, "gpu:0"),
        (("--model_version=7",), 2, "it has: 1.0"),
    ],
)
def test_error_of_the_agent_is_the_one_of_a_local_run(agent, served_agent, arguments, code, part):
    local = agent("predict", "dataset", "--num_file_parts=-1", *arguments)
    remote = agent("predict", "dataset", "--num_file_parts=-1", f"--agent={served_agent}", *arguments)
    assert (local.code, remote.code) == (code, code)
    assert part in remote.error
    assert local.error.removeprefix("agent: ") in remote.error


def test_second_agent_on_a_port_is_refused(agent, served_agent):
    answer = agent("serve", f"--port={served_agent.rpartition(':')[2]}")
    assert answer.code == 2
    assert served_agent in answer.error
