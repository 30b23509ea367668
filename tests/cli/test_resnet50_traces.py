"""A real network traced through the command line: every convolution, and nearly all of the time."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import Agent

CONVOLUTIONS = 53
BATCH_SIZE = 4
BATCHES = 2


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A dataset of noise."""
    folder = tmp_path / "images" / "n01440764"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for number in range(BATCH_SIZE * BATCHES):
        pixels = random.integers(0, 255, (256, 256, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder.parent


def check_nesting(events: list[dict[str, Any]]) -> None:
    """On each track an event lies inside of, or beside, every other one."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        assert event["dur"] >= 0
        begin, lasts = (round(event[key] * 1000) for key in ("ts", "dur"))  # whole ns, as they were recorded
        tracks[event["pid"], event["tid"]].append((begin, begin + lasts))
    for track in tracks.values():
        open_until: list[int] = []
        for begin, end in sorted(track, key=lambda times: (times[0], -times[1])):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1], (begin, end, open_until)
            open_until.append(end)


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet", "ONNXRuntime"])
def test_every_convolution_and_nearly_all_of_the_time_is_found(
    agent: Agent, images: Path, tmp_path: Path, framework: str
) -> None:
    answer = agent(
        "predict",
        "dataset",
        "--model_name=ResNet50",
        f"--framework_name={framework}",
        "--weights=random",
        f"--dataset_path={images}",
        f"--batch_size={BATCH_SIZE}",
        "--trace_level=FRAMEWORK_TRACE",
    )
    assert answer.code == 0, answer.stderr

    rows = agent("info", "evaluation", "layers", "-f", "csv").rows
    convolutions = [row for row in rows if "conv" in row["layer_type"].casefold()]
    assert len(convolutions) == CONVOLUTIONS
    assert all(float(row["duration_us_trimmed_mean"]) > 0 for row in convolutions)
    assert all(row["input_shapes"].startswith(f"{BATCH_SIZE}x") for row in convolutions)
    assert {row["occurrences"] for row in convolutions} == {str(BATCHES)}

    path = tmp_path / "trace.json"
    assert agent("trace", "export", answer.figure("evaluation"), "-o", path).code == 0
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    check_nesting(events)
    by_id = {event["args"]["span_id"]: event for event in events}
    layers = [event for event in events if event["cat"] == "FRAMEWORK_TRACE"]
    predicts = {event["args"]["parent_id"]: by_id[event["args"]["parent_id"]] for event in layers}
    assert {event["name"] for event in predicts.values()} == {"predict"}
    assert len(predicts) == BATCHES
    share = sum(event["dur"] for event in layers) / sum(event["dur"] for event in predicts.values())
    assert 0.8 <= share <= 1.0
    for event in layers:
        parent = by_id[event["args"]["parent_id"]]
        assert parent["ts"] <= event["ts"]
        assert event["ts"] + event["dur"] <= parent["ts"] + parent["dur"] + 0.001
    assert sum(float(row["share_percent"]) for row in rows) == pytest.approx(100)
    assert len(layers) == sum(int(row["occurrences"]) for row in rows) == BATCHES * len(rows)
    total_us = sum(float(row["total_us"]) for row in rows)
    assert total_us == pytest.approx(sum(event["dur"] for event in layers))


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet", "ONNXRuntime"])
def test_the_events_of_a_full_trace_nest(agent: Agent, framework: str) -> None:
    evaluate = ("predict", "dataset", f"--framework_name={framework}", "--trace_level=FULL_TRACE")
    answer = agent(*evaluate)

    exported = agent("trace", "export", answer.figure("evaluation")).stdout
    events = [event for event in json.loads(exported)["traceEvents"] if event["ph"] == "X"]
    assert "hardware_sample" in {event["name"] for event in events}
    check_nesting(events)
