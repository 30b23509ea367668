"""``--leveled``: one evaluation per trace level that a deeper level would disturb, in one group."""

from __future__ import annotations

import re
import socket

import pytest

from tests.cli.conftest import Agent, Answer

EVALUATE = ("predict", "dataset", "--framework_name=PyTorch", "--batch_size=16", "--num_file_parts=2")


def levels_of(agent: Agent, *arguments: str) -> list[str]:
    rows = agent("info", "evaluation", "duration", *arguments, "-f", "csv").rows
    return list(dict.fromkeys(row["trace_level"] for row in rows))


def evaluations(answer: Answer) -> list[str]:
    return re.findall(r"^evaluation +(.*)$", answer.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("deepest", "expected"),
    [
        ((), ["MODEL_TRACE", "FRAMEWORK_TRACE"]),
        (("--trace_level=framework_trace",), ["MODEL_TRACE", "FRAMEWORK_TRACE"]),
        (("--trace_level=ML_LIBRARY_TRACE",), ["MODEL_TRACE", "FRAMEWORK_TRACE", "ML_LIBRARY_TRACE"]),
        (
            ("--trace_level=FULL_TRACE",),
            ["MODEL_TRACE", "FRAMEWORK_TRACE", "SYSTEM_LIBRARY_TRACE", "FULL_TRACE"],
        ),
    ],
)
def test_each_level_is_an_evaluation_of_one_group(
    agent: Agent, deepest: tuple[str, ...], expected: list[str]
) -> None:
    answer = agent(*EVALUATE, "--leveled", *deepest)

    assert answer.code == 0
    assert len(set(evaluations(answer))) == len(expected)
    group = answer.figure("group")
    agent(*EVALUATE)  # belongs to no group
    assert levels_of(agent, "--id", group) == expected[::-1]
    assert levels_of(agent, "--id", evaluations(answer)[0]) == ["MODEL_TRACE"]
    [root] = agent("info", "evaluation", "eventflow", "--id", evaluations(answer)[0], "-f", "csv").rows[-1:]
    assert root["id"] == evaluations(answer)[0]
    if len(expected) == 2:
        layers = agent("info", "evaluation", "layers", "--id", group, "-f", "csv").rows
        found = {(row["id"], row["trace_level"]) for row in layers}
        assert found == {(evaluations(answer)[1], "FRAMEWORK_TRACE")}


def test_a_level_without_deeper_ones_is_refused(agent: Agent) -> None:
    answer = agent(*EVALUATE, "--leveled", "--trace_level=MODEL_TRACE")

    assert answer.code == 2
    assert "leveled down to MODEL_TRACE is only one level" in answer.error


def test_what_is_not_delivered_is_said_of_each_level(agent: Agent) -> None:
    with socket.socket() as bound:  # never listens, so that the port refuses
        bound.bind(("127.0.0.1", 0))
        answer = agent(*EVALUATE, "--leveled", f"--tracer_address=127.0.0.1:{bound.getsockname()[1]}")

    assert answer.code == 0
    assert answer.stderr.count("were not delivered") == 2


def test_failed_inputs_of_any_level_show_in_the_exit_code(agent: Agent, broken_dataset: str) -> None:
    answer = agent(*EVALUATE, "--leveled", "--publish=false", f"--dataset_path={broken_dataset}")

    assert answer.code == 1
    assert len(evaluations(answer)) == 2
    assert "group" not in answer.stdout


@pytest.fixture
def broken_dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of which one image cannot be read."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("digits") / "7"
    folder.mkdir()
    for number in range(3):
        Image.new("L", (16, 16), number).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"no image")
    return str(folder.parent)
