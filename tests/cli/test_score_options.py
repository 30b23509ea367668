"""The options of ``agent score``, and the arguments of ``inferometer.score``, that some tasks do not have."""

from __future__ import annotations

from pathlib import Path

import pytest

import inferometer
from inferometer.manifests.errors import ConfigurationError
from tests.cli.conftest import Agent

OF_DETECTION = "object_detection and instance_segmentation"


@pytest.mark.parametrize(
    ("task", "option", "message"),
    [
        ("detection", "--score_border=0", "score_border is for image_enhancement; leave it out for object_"),
        ("detection", "--score_channels=Y", "score_channels is for image_enhancement; leave it out for"),
        ("qa", "--label_threshold=0.4", "label_threshold is for multilabel_classification; leave it out for"),
        ("segmentation", "--average_precision=voc", f"average_precision is for {OF_DETECTION}; leave it out"),
        ("regression", "--labels=names.txt", "labels is for tasks with classes; leave it out for regression"),
        ("enhancement", "--per_class", "per_class is for tasks with classes; leave it out for image"),
    ],
)
def test_an_option_of_another_task_is_refused(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, option: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("names.txt").write_text("cat\n")

    answer = agent("score", f"--task={task}", tmp_path, f"--dataset_path={tmp_path}", option)

    assert (answer.code, answer.stdout) == (2, "")
    assert message in answer.error


def test_the_library_refuses_the_same(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="label_threshold is for multilabel_classification"):
        inferometer.score(tmp_path, task="detection", dataset_path=tmp_path, label_threshold=0.4)
    with pytest.raises(ConfigurationError, match="label_threshold is 2; it must be"):
        inferometer.score(tmp_path, task="multilabel", dataset_path=tmp_path, label_threshold=2)
    with pytest.raises(ConfigurationError, match='unknown average_precision "ap"; known: coco, lvis, voc'):
        inferometer.score(tmp_path, task="detection", dataset_path=tmp_path, average_precision="ap")
    with pytest.raises(TypeError, match="unexpected keyword argument 'border'"):
        inferometer.score(tmp_path, task="detection", border=1)  # type: ignore[call-arg]
