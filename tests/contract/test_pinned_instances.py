"""Instances that are bound to processors of their own: all of their threads run there, in every framework."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from inferometer.agent.hardware.environment import usable_processors

PROGRAM = """
import json, sys, threading
from pathlib import Path
from concurrent.futures import ThreadPoolExecutor
import numpy as np, psutil
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session, select_model
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_model import ServedModel
from inferometer.manifests.catalog import Catalog

def masks(process="self"):
    found = {}
    for task in Path(f"/proc/{process}/task").iterdir():
        status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        found[int(task.name)] = status["Cpus_allowed_list"].strip()
    return found

def main(framework, places):
    registry = Registry()
    manifest = select_model(Catalog(), registry, "DigitsCNN", None, framework)
    [tensor] = manifest.tensors
    batch = {tensor.name: np.zeros((64, *tensor.sized()), np.float32)}
    registry.find(framework).load()
    before = masks()
    session = open_session(manifest, SessionOptions(threads=3, processors=places), registry)
    options = BatchingOptions(instances=2, pin=True)
    model = ServedModel(session, options, open_instance=session.open_another)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: model.infer(batch), range(40)))
    after = masks()
    print(json.dumps({
        "main": after[min(after)],
        "threads": [mask for task, mask in after.items() if task not in before],
        "processes": [
            sorted(set(masks(child.pid).values()))
            for child in psutil.Process().children()
            if "resource_tracker" not in " ".join(child.cmdline())
        ],
        "settings": session.description.environment.settings["processors of the instances"],
    }))
    model.close()
    model.wait_closed(20)

if __name__ == "__main__":
    main(sys.argv[1], [tuple(each) for each in json.loads(sys.argv[2])])
"""


@pytest.mark.skipif(len(usable_processors()) < 2, reason="one processor only")
@pytest.mark.parametrize("framework", ["PyTorch", "ONNXRuntime", "MXNet"])
def test_all_threads_of_an_instance_are_bound_to_its_processors(framework: str) -> None:
    places = [[number] for number in sorted(usable_processors())[:2]]
    before = usable_processors()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, framework, json.dumps(places)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    first, second = (str(place[0]) for place in places)

    assert found["settings"] == f"{first} | {second}"
    assert found["main"] not in (first, second)
    assert usable_processors() == before
    counts = [found["threads"].count(place) for place in (first, second)]
    assert counts[0] >= 3  # with the pools that a process has once
    if framework == "MXNet":
        assert counts[1] == 2  # the threads that send the batches to the process, and watch it
        assert found["processes"] == [[second]]
    else:
        assert counts[1] == 3
        assert found["processes"] == []
