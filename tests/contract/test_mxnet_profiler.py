"""MXNet's profiler as spans, on real networks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profiled_rounds import Rounds, inputs, open_random, profiled

from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.tracing.recorder import SpanRecorder, TraceContext, TraceLevel
from inferometer.manifests.errors import PredictionError


@pytest.fixture(scope="module")
def predictor() -> Iterator[Predictor]:
    with open_random("ResNet18", "MXNet") as predictor:
        yield predictor


@pytest.fixture(scope="module")
def rounds(predictor: Predictor) -> Rounds:
    """Two rounds of two batch sizes."""
    return profiled(predictor, TraceLevel.FULL_TRACE, [(1, 3), (2, 2), (1, 2)])


def test_every_convolution_is_a_layer_with_its_name_time_and_shapes(rounds: Rounds) -> None:
    for prediction in rounds.predictions:
        convolutions = [layer for layer in prediction.layers if "conv" in layer.type]
        assert len(convolutions) == 20
        assert convolutions[0].name.endswith("conv0_fwd")
        assert convolutions[0].attribute("fused_layers")[1].endswith("batchnorm0_fwd")
        assert convolutions[0].input_shapes[:2] == (f"{prediction.batch_size}x3x224x224", "64x3x7x7")
        assert convolutions[0].output_shapes == (f"{prediction.batch_size}x64x112x112",)
        assert len({layer.name for layer in convolutions}) == 20
        assert all(layer.end_ns > layer.start_ns for layer in convolutions)
        dense = prediction.layers[-1]
        assert dense.output_shapes == (f"{prediction.batch_size}x1000",)


def test_each_prediction_has_the_same_layers_which_follow_each_other_in_it(rounds: Rounds) -> None:
    assert len(rounds.predictions) == 7
    for prediction in rounds.predictions:
        prediction.check_layers()
        assert [layer.name for layer in prediction.layers] == [x.name for x in rounds.predictions[0].layers]


def test_layers_make_up_the_time_of_the_predictions(rounds: Rounds) -> None:
    assert 0.5 <= rounds.share_of_layers <= 1


def test_what_mxnet_does_not_give_is_noted_once(rounds: Rounds) -> None:
    assert [note for note in rounds.notes if "memory" in note] == [
        "no memory for single layers: MXNet reserves it for the whole graph"
    ]
    assert len([note for note in rounds.notes if "kernels" in note]) == 1
    assert not any("types" in note for note in rounds.notes)


def test_answers_are_the_same_and_nothing_stays_behind(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("MXNET_EXEC_BULK_EXEC_INFERENCE", "1")
    batch = inputs(predictor, 2)
    before = predictor.predict(batch)
    profiler = predictor.profiler(TraceLevel.FRAMEWORK_TRACE)
    assert profiler is not None
    profiler.start()
    during = predictor.predict(batch)
    assert list(tmp_path.iterdir())

    profiler.close()
    profiler.close()

    assert not list(tmp_path.iterdir())
    assert os.environ["MXNET_EXEC_BULK_EXEC_INFERENCE"] == "1"
    assert _same(before, during)
    assert _same(before, predictor.predict(batch))


def test_where_a_graph_branches_layers_have_types_until_its_order_is_kept() -> None:
    with open_random("GoogLeNet", "MXNet") as predictor:
        before = predictor.predict(inputs(predictor, 1))
        profiler = predictor.profiler(TraceLevel.FRAMEWORK_TRACE)
        assert profiler is not None
        found = profiled(predictor, TraceLevel.FRAMEWORK_TRACE, [(1, 1), (1, 1), (2, 1)], profiler)
        assert _same(before, predictor.predict(inputs(predictor, 1)))

    assert "layers of some batches have only types: MXNet did not follow its graph's order" in found.notes
    first, *later = found.predictions
    assert {layer.name for layer in first.layers} == {layer.type for layer in first.layers}
    for prediction in later:
        prediction.check_layers()
        assert sorted(layer.type for layer in prediction.layers) == sorted(x.type for x in first.layers)
        assert len({layer.name for layer in prediction.layers}) == len(prediction.layers)
        assert all(layer.output_shapes for layer in prediction.layers)


def test_one_model_is_profiled_at_a_time_in_a_process(predictor: Predictor) -> None:
    first = predictor.profiler(TraceLevel.FRAMEWORK_TRACE)
    second = predictor.profiler(TraceLevel.FRAMEWORK_TRACE)
    assert first is not None
    assert second is not None
    first.start()
    try:
        with pytest.raises(PredictionError, match="already recording another model"):
            second.start()
        second.close()
    finally:
        first.collect(SpanRecorder(TraceContext.new(), TraceLevel.FRAMEWORK_TRACE))
        first.close()

    second.start()
    second.close()


PROGRAM = """
with open_random("CIFAR10_LeNet", "MXNet") as predictor:
    assert profiled(predictor, TraceLevel.FRAMEWORK_TRACE, [(1, 2)]).predictions[0].layers
"""

OTHER_USE = """
mx.profiler.set_config(filename="own.json", {settings})
mx.profiler.set_state("run")
mx.nd.ones((2, 2)).asnumpy()
mx.profiler.set_state("stop")
mx.profiler.dump(finished={finished})
"""

# Each program runs in a process of its own: a copy of one that has imported everything and used nothing,
# because the imports take most of the time.
FORKS = """
import json, os, sys, tempfile
from pathlib import Path
from profiled_rounds import open_random, profiled
from inferometer.agent.tracing.recorder import TraceLevel
import inferometer.agent.frameworks.mxnet.predictor, mxnet as mx
import inferometer.agent.frameworks.mxnet.profiler
for folder, program in json.loads(sys.argv[1]):
    if pid := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        Path(folder).with_suffix(".code").write_text(str(code))
        continue
    os.chdir(folder)
    os.environ["TMPDIR"], tempfile.tempdir = folder, None
    for stream, name in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(Path(folder).with_suffix(name), os.O_WRONLY | os.O_CREAT), stream)
    exec(program)
    break
"""

PROGRAMS = {
    f"{settings} {finished}": OTHER_USE.format(settings=settings, finished=finished) + PROGRAM + PROGRAM
    for settings in ("profile_all=True", "profile_imperative=True, continuous_dump=True")
    for finished in (True, False)
} | {"alone": PROGRAM}


@dataclass(frozen=True)
class Done:
    """A process that ended: its exit code, what it wrote, and the folder that it ran in."""

    code: int
    stdout: str
    stderr: str
    folder: Path


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """The processes of the programs."""
    root = tmp_path_factory.mktemp("processes")
    folders = [root / str(number) for number in range(len(PROGRAMS))]
    for folder in folders:
        folder.mkdir()
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    subprocess.run(
        [sys.executable, "-c", FORKS, json.dumps([*zip(map(str, folders), PROGRAMS.values(), strict=True)])],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=150,
        check=True,
    )

    def read(folder: Path, suffix: str) -> str:
        return folder.with_suffix(suffix).read_text()

    return {
        name: Done(int(read(folder, ".code")), read(folder, ".out"), read(folder, ".err"), folder)
        for name, folder in zip(PROGRAMS, folders, strict=True)
    }


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "alone"])
def test_a_program_may_have_used_the_profiler_itself(processes: dict[str, Done], name: str) -> None:
    done = processes[name]

    assert done.code == 0, done.stderr
    assert (done.folder / "own.json").exists()


def test_the_process_leaves_no_profile_when_it_ends(processes: dict[str, Done]) -> None:
    done = processes["alone"]

    assert (done.code, done.stdout, done.stderr) == (0, "", "")
    assert not list(done.folder.iterdir())


def _same(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in first)
