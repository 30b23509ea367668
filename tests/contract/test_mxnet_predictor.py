"""Properties of MXNet only: asynchronous execution, engine threads, symbols with labels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferometer.agent.architectures.mxnet.resnet import ResNet
from inferometer.agent.artifacts.files import Artifacts
from inferometer.manifests.errors import ArtifactError, PredictionError
from inferometer.manifests.loader import parse_manifest
from tests.optional_mxnet import mxnet


def save(symbol, folder, parameters=None) -> Artifacts:
    artifacts = Artifacts(graph=folder / "net-symbol.json", weights=folder / "net.params")
    symbol.save(str(artifacts.graph))
    mxnet.nd.save(str(artifacts.weights), parameters or {})
    return artifacts


def test_nothing_is_left_running_when_predict_returns(open_predictor, tmp_path):
    data = mxnet.sym.var("data")
    net = mxnet.sym.FullyConnected(mxnet.sym.Flatten(data), name="widen", num_hidden=1024, no_bias=True)
    weight = mxnet.sym.var("square_weight")
    for layer in range(6):
        net = mxnet.sym.FullyConnected(net, weight, name=f"fc{layer}", num_hidden=1024, no_bias=True)
    parameters = {
        "arg:widen_weight": mxnet.nd.ones((1024, 64)),
        "arg:square_weight": mxnet.nd.ones((1024, 1024)) / 1024,
    }
    predictor = open_predictor("MXNet", artifacts=save(net, tmp_path, parameters))
    batch = np.ones((512, 1, 8, 8), np.float32)
    predictor.predict({"data": batch})
    started = time.perf_counter_ns()
    predictor.predict({"data": batch})
    predict_ns = time.perf_counter_ns() - started
    started = time.perf_counter_ns()
    mxnet.nd.waitall()
    rest_ns = time.perf_counter_ns() - started
    assert rest_ns < 0.2 * predict_ns


def test_predictors_wait_for_each_other_before_they_are_timed(open_predictor):
    first, second = open_predictor("MXNet"), open_predictor("MXNet")
    entered = threading.Event()

    def enter() -> None:
        with second.turn():
            entered.set()

    with ThreadPoolExecutor(1) as pool:
        with first.turn():
            waiting = pool.submit(enter)
            assert not entered.wait(0.05)
            first.predict({"data": np.zeros((1, 1, 8, 8), np.float32)})
        waiting.result(20)
    assert entered.is_set()


THREADS_PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.frameworks.mxnet.predictor import MXNetPredictor
from inferometer.agent.frameworks.mxnet.runtime import WORKERS
from inferometer.agent.inference.predictor import PredictorOptions
from inferometer.manifests.errors import ConfigurationError
from inferometer.manifests.schema import ModelManifest

assert not {"sklearn", "scipy.stats"} & sys.modules.keys()
manifest = ModelManifest.model_validate_json(sys.argv[1])
artifacts = Artifacts(Path(sys.argv[2]), Path(sys.argv[3]))
threads = int(sys.argv[4])
images = np.ones((64, 1, 8, 8), np.float32)
for _ in range(3):
    with MXNetPredictor(manifest, artifacts, PredictorOptions(threads=threads)) as predictor:
        for size in (1, 7, 64):
            predictor.predict({"data": images[:size]})
        assert predictor.threads == threads, predictor.threads
        assert WORKERS.read() == [threads] * int(sys.argv[5]), WORKERS.read()
with MXNetPredictor(manifest, artifacts, PredictorOptions()) as predictor:
    assert predictor.threads == threads, predictor.threads
try:
    MXNetPredictor(manifest, artifacts, PredictorOptions(threads=threads + 1)).load()
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.parametrize(("threads", "workers"), [(1, 1), (3, 2)])
def test_the_first_predictor_of_a_process_decides_the_threads_of_the_engine(tiny_models, threads, workers):
    model = tiny_models["MXNet"]
    arguments = [
        model.manifest.model_dump_json(),
        model.artifacts.graph,
        model.artifacts.weights,
        threads,
        workers,
    ]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", THREADS_PROGRAM, *map(str, arguments)],
        env={**os.environ, "MXNET_CPU_WORKER_NTHREADS": str(workers)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    expected = (
        f"threads: found {threads + 1}; MXNet sets the number once per process, and here it is {threads}; "
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == expected + "use another process\n"


SPARE_PROGRAM = """
import sys
sys.modules.update(sklearn=None, scipy=None)  # MXNet does without them, and they take a second to import
from pathlib import Path
import numpy as np
from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.frameworks.mxnet.predictor import MXNetPredictor
from inferometer.agent.frameworks.mxnet.runtime import WORKERS
from inferometer.agent.inference.predictor import PredictorOptions
from inferometer.manifests.schema import ModelManifest

manifest = ModelManifest.model_validate_json(sys.argv[1])
artifacts = Artifacts(Path(sys.argv[2]), Path(sys.argv[3]))
for spare_cores in map(int, sys.argv[4].split(",")):
    with MXNetPredictor(manifest, artifacts, PredictorOptions(spare_cores=spare_cores)) as predictor:
        predictor.predict({"data": np.ones((7, 1, 8, 8), np.float32)})
        print(predictor.threads, *WORKERS.read())
"""


@pytest.mark.parametrize(("spare_cores", "threads"), [((10_000, 0), [1, 1]), ((0, 10_000), [3, 3])])
def test_the_first_predictor_of_a_process_leaves_spare_cores_and_no_later_one_fails_for_them(
    tiny_models, spare_cores, threads
):
    model = tiny_models["MXNet"]
    arguments = [model.manifest.model_dump_json(), model.artifacts.graph, model.artifacts.weights]
    done = subprocess.run(
        [sys.executable, "-c", SPARE_PROGRAM, *map(str, arguments), ",".join(map(str, spare_cores))],
        env={**os.environ, "OMP_NUM_THREADS": "3", "MXNET_CPU_WORKER_NTHREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"{each} {each}\n" for each in threads)


THREAD_VARIABLES = {"OMP_NUM_THREADS", "MXNET_OMP_MAX_THREADS", "MXNET_CPU_WORKER_NTHREADS"}
OPERATOR_PROGRAM = """
import sys
sys.modules.update(sklearn=None, scipy=None)  # MXNet does without them, and they take a second to import
import os
from pathlib import Path
from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.frameworks.mxnet.predictor import MXNetPredictor
from tests.optional_mxnet import mxnet
from inferometer.agent.inference.predictor import PredictorOptions
from inferometer.manifests.schema import ModelManifest

assert "OMP_NUM_THREADS" not in os.environ
manifest = ModelManifest.model_validate_json(sys.argv[1])
artifacts = Artifacts(Path(sys.argv[2]), Path(sys.argv[3]))
rows, places = mxnet.nd.zeros((512, 4096)), mxnet.nd.zeros((20_000,))
mxnet.nd.waitall()


def run_ns():
    # the CPU time of each thread but this one, which only waits
    tasks = [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
    return {task.name: int((task / "schedstat").read_text().split()[0]) for task in tasks}


with MXNetPredictor(manifest, artifacts, PredictorOptions(threads=int(sys.argv[4]))) as predictor:
    for _ in range(10):  # on a busy machine one thread may do the work of another
        before = run_ns()
        for _ in range(2):
            mxnet.nd.take(rows, places).wait_to_read()  # an operator outside oneDNN
        spent = [after - before.get(name, 0) for name, after in run_ns().items()]
        busy = sum(each > max(spent) / 5 for each in spent)
        if busy == int(sys.argv[4]):
            break
    print(busy)
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="threads have no CPU times here")
@pytest.mark.parametrize("threads", [1, 4])
def test_an_operator_outside_onednn_uses_the_threads_that_were_asked_for(tiny_models, threads):
    model = tiny_models["MXNet"]
    arguments = [model.manifest.model_dump_json(), model.artifacts.graph, model.artifacts.weights, threads]
    done = subprocess.run(
        [sys.executable, "-c", OPERATOR_PROGRAM, *map(str, arguments)],
        env={name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{threads}\n"), done.stderr


def test_tells_the_openblas_beside_it_and_the_tuning_of_a_build_with_cuda(open_predictor, monkeypatch):
    predictor = open_predictor("MXNet")
    told = predictor.details()
    assert told.libraries["BLAS"].startswith("OpenBLAS ")
    features = told.build.split(", ")
    assert {"✔ MKLDNN", "✖ CUDA"} < set(features)
    assert len(features) == len(mxnet.runtime.Features())
    assert "cuDNN autotuning" not in told.settings

    monkeypatch.setattr(mxnet.runtime.Features, "is_enabled", lambda _, name: name == "CUDA")
    for value, meaning in {"0": "off", "1": "on", "2": "on, any workspace"}.items():
        monkeypatch.setenv("MXNET_CUDNN_AUTOTUNE_DEFAULT", value)
        assert predictor.details().settings["cuDNN autotuning"] == meaning


def test_predictors_in_several_threads_do_not_disturb_each_other(open_predictor, images):
    expected = open_predictor("MXNet").predict({"data": images})["fc_output"]

    def work(seed: int) -> float:
        sizes = np.random.default_rng(seed).integers(1, 64, 15)
        worst = 0.0
        for _ in range(5):
            predictor = open_predictor("MXNet")
            for size in sizes:
                output = predictor.predict({"data": images[:size]})["fc_output"]
                worst = max(worst, float(np.abs(output - expected[:size]).max()))
            predictor.close()
        return worst

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(work, range(4))) < 1e-5


def test_several_outputs_have_the_symbols_names_and_order(open_predictor, tmp_path, images):
    data = mxnet.sym.var("data")
    net = mxnet.sym.Group(
        [mxnet.sym.Flatten(data * 2, name="twice"), mxnet.sym.Flatten(data + 1, name="more")]
    )
    outputs = open_predictor("MXNet", artifacts=save(net, tmp_path)).predict({"data": images})
    assert list(outputs) == ["twice_output", "more_output"]
    np.testing.assert_allclose(outputs["twice_output"], images.reshape(64, -1) * 2)
    np.testing.assert_allclose(outputs["more_output"], images.reshape(64, -1) + 1)


def test_a_symbol_that_was_trained_runs_without_its_label(open_predictor, tmp_path, images):
    net = mxnet.sym.SoftmaxOutput(mxnet.sym.Flatten(mxnet.sym.var("data")), name="softmax")
    (output,) = open_predictor("MXNet", artifacts=save(net, tmp_path)).predict({"data": images}).values()
    assert output.shape == (64, 64)
    np.testing.assert_allclose(output.sum(1), 1, atol=1e-5)


def test_auxiliary_states_are_used(open_predictor, tmp_path, images):
    net = mxnet.sym.BatchNorm(mxnet.sym.var("data"), name="bn", eps=1e-5, fix_gamma=False)
    parameters = {
        "arg:bn_gamma": mxnet.nd.full((1,), 2.0),
        "arg:bn_beta": mxnet.nd.full((1,), 1.0),
        "aux:bn_moving_mean": mxnet.nd.full((1,), 0.5),
        "aux:bn_moving_var": mxnet.nd.full((1,), 4.0),
    }
    (output,) = (
        open_predictor("MXNet", artifacts=save(net, tmp_path, parameters)).predict({"data": images}).values()
    )
    np.testing.assert_allclose(output, (images - 0.5) / np.sqrt(4 + 1e-5) * 2 + 1, atol=1e-5)


def test_missing_parameters_are_named(open_predictor, tiny_models, tmp_path):
    artifacts = tiny_models["MXNet"].artifacts
    parameters = mxnet.nd.load(str(artifacts.weights))
    del parameters["arg:fc_bias"]
    mxnet.nd.save(str(tmp_path / "few.params"), parameters)
    with pytest.raises(ArtifactError, match=r"few\.params: lacks 1 of the 4 parameters .* fc_bias"):
        open_predictor("MXNet", artifacts=replace(artifacts, weights=tmp_path / "few.params"))


def test_parameters_of_another_shape_are_refused_at_load(open_predictor, tiny_models, tmp_path):
    artifacts = tiny_models["MXNet"].artifacts
    parameters = mxnet.nd.load(str(artifacts.weights))
    parameters["arg:fc_weight"] = mxnet.nd.zeros((10, 63))
    mxnet.nd.save(str(tmp_path / "other.params"), parameters)
    with pytest.raises(ArtifactError, match=r"other\.params") as caught:
        open_predictor("MXNet", artifacts=replace(artifacts, weights=tmp_path / "other.params"))
    assert "\n" not in str(caught.value)
    assert "Stack trace" not in str(caught.value)


def test_an_input_of_another_name_is_refused_with_the_nearest(open_predictor, tiny_models, tmp_path):
    artifacts = tiny_models["MXNet"].artifacts
    graph = json.loads(artifacts.graph.read_text())
    graph["nodes"][0]["name"] = "data0"
    (tmp_path / "renamed.json").write_text(json.dumps(graph))
    with pytest.raises(ArtifactError, match=r'no input "data"; did you mean "data0"\?'):
        open_predictor("MXNet", artifacts=replace(artifacts, graph=tmp_path / "renamed.json"))


def test_a_batch_that_the_graph_cannot_take_is_one_line_and_the_next_one_works(
    open_predictor, tmp_path, images
):
    net = mxnet.sym.broadcast_add(mxnet.sym.var("data"), mxnet.sym.zeros((1, 1, 8, 8)))
    net = mxnet.sym.Concat(net, mxnet.sym.ones((1, 1, 8, 8)), dim=1)  # joins only batches of one
    predictor = open_predictor("MXNet", artifacts=save(net, tmp_path))
    for _ in range(2):
        with pytest.raises(PredictionError, match="MXNet failed on a batch of 7") as caught:
            predictor.predict({"data": images[:7]})
        assert "\n" not in str(caught.value)
        assert "Stack trace" not in str(caught.value)
    (output,) = predictor.predict({"data": images[:1]}).values()
    assert output.shape == (1, 2, 8, 8)


def test_says_nothing_on_stderr(open_predictor, images, capfd):
    open_predictor("MXNet").predict({"data": images})
    assert capfd.readouterr().err == ""


RESNET = parse_manifest(
    {
        "name": "Resnet",
        "framework": {"name": "MXNet"},
        "inputs": [{"type": "image", "parameters": {"dimensions": [3, 32, 32]}}],
        "output": {"type": "classification"},
        "model": {"architecture": "resnet18", "weights_path": "resnet.params"},
    },
    Path("resnet.yml"),
)


def test_an_architecture_in_code_gets_its_weights(open_predictor, tmp_path):
    net = ResNet(depth=18)
    net.initialize(mxnet.init.Xavier())
    batch = np.random.default_rng(1).normal(size=(3, 3, 32, 32)).astype(np.float32)
    expected = net(mxnet.nd.from_numpy(batch, zero_copy=False)).asnumpy()
    net.save_parameters(str(tmp_path / "resnet.params"))
    artifacts = Artifacts(weights=tmp_path / "resnet.params")
    predictor = open_predictor("MXNet", manifest=RESNET, artifacts=artifacts)
    (output,) = predictor.predict({"data": batch}).values()
    np.testing.assert_allclose(output, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("content", ["truncated", "of another network", "foreign"])
def test_weights_that_are_not_those_of_the_architecture_are_refused(open_predictor, tmp_path, content):
    path = tmp_path / "resnet.params"
    if content == "foreign":
        path.write_bytes(b"no parameters")
    else:
        net = ResNet(depth=34 if content == "of another network" else 18)
        net.initialize(mxnet.init.Zero())
        net(mxnet.nd.zeros((1, 3, 32, 32)))
        net.save_parameters(str(path))
    if content == "truncated":
        path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(ArtifactError) as error:
        open_predictor("MXNet", manifest=RESNET, artifacts=Artifacts(weights=path))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_an_architecture_without_weights_is_refused(open_predictor):
    with pytest.raises(ArtifactError, match="has no weights; give weights_path, or use --weights=random"):
        open_predictor("MXNet", manifest=RESNET, artifacts=Artifacts())


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("_Native", {"info": "0x414141414141"}),  # the address of a structure of functions
        ("_NDArray", {"info": "0x414141414141"}),
        ("_backward__Native", {"info": "0x414141414141"}),
        ("_cvimread", {"filename": __file__}),
        ("_npi_cvimread", {"filename": __file__}),
        ("Custom", {"op_type": "resize_fallback"}),
    ],
)
def test_a_symbol_with_operators_that_run_code_or_read_files_is_refused(
    open_predictor, tmp_path, operator, attributes, inside
):
    artifacts = save(mxnet.sym.relu(mxnet.sym.var("data")), tmp_path)
    document = json.loads(artifacts.graph.read_text())
    changed = document["nodes"][1] | {"op": operator, "attrs": attributes}
    if inside:
        document["nodes"][1]["subgraphs"] = [document | {"nodes": [changed]}]
    else:
        document["nodes"][1] = changed
    artifacts.graph.write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match=f"uses the operator {operator}, which could run code"):
        open_predictor("MXNet", artifacts=artifacts)


def test_what_was_checked_of_a_symbol_is_what_mxnet_reads(open_predictor, tmp_path):
    artifacts = save(mxnet.sym.relu(mxnet.sym.var("data"), name="naïve"), tmp_path)
    text = artifacts.graph.read_text("utf-8")
    artifacts.graph.write_text(text.replace('"op": "relu"', '"op": "_cvimread", "op": "relu"'), "utf-8")
    outputs = open_predictor("MXNet", artifacts=artifacts).predict(
        {"data": -np.ones((2, 1, 8, 8), np.float32)}
    )
    assert list(outputs) == ["naïve_output"]
    assert not outputs["naïve_output"].any()
