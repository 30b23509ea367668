"""Runs every GPU path of the program on this machine, and prints what passed, failed or was skipped.

    python -m tools.gpu_check                        all frameworks
    python -m tools.gpu_check PyTorch ONNXRuntime    some of them

A framework without CUDA is skipped. Each check runs ``agent`` in processes of its own, with a database of its
own, and compares the answer with that of the same command on the CPU where possible. The exit code is 1 if a
check failed.
"""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")
_AGENT = (sys.executable, "-c", "from inferometer.client.cli.main import main; main()")
_FEW = ("--batch_size=16", "--partition_list_size=64", "--num_file_parts=2")
_LARGE = ("--model_name=ResNet18", "--weights=random", "--dataset_name=digits_validation")
_TIMEOUT_S = 600
_DEVICE_MISSING = 3
_HOLD_MEMORY = """
import sys, torch
free_bytes, _ = torch.cuda.mem_get_info()
held = torch.empty(free_bytes - 256 * 1024 * 1024, dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


class Skipped(Exception):  # noqa: N818 - it is no error
    """A check that cannot run on this machine or with this framework; the message says why."""


class Commands:
    """Runs ``agent`` for one framework.

    Args:
        framework: Its name.
        folder: Holds the database and the cache.
        device: The options of each evaluation that choose the device.
    """

    def __init__(self, framework: str, folder: Path, device: Sequence[str] = ("--gpu",)) -> None:
        self.framework = framework
        self.device = device
        names = {"AGENT_DATA_DIR": "data", "AGENT_CONFIG": "config.yml"}
        (folder / "config.yml").write_text("{}")
        self._environment: Mapping[str, str] = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AGENT_")},
            **{name: str(folder / place) for name, place in names.items()},
        }

    def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, whether or not it succeeds."""
        return subprocess.run(
            [*_AGENT, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    def run(self, *arguments: str, code: int = 0) -> str:
        """Runs a command, and returns its stdout, or its stderr if it is expected to fail."""
        done = self.start(*arguments)
        last = (done.stderr.strip().splitlines() or [""])[-1]
        assert done.returncode == code, f"exit code {done.returncode}: {last}"
        return done.stderr if code else done.stdout

    def evaluation(self, *arguments: str, command: str = "dataset") -> tuple[str, ...]:
        """Returns the arguments of an evaluation on the device."""
        return ("predict", command, f"--framework_name={self.framework}", *self.device, *arguments)

    def predict(self, *arguments: str, command: str = "dataset") -> str:
        """Evaluates on the device, and returns the id of the evaluation."""
        printed = self.run(*self.evaluation(*arguments, command=command))
        return next(line.split()[1] for line in printed.splitlines() if line.startswith("published"))

    def shown(self, evaluation_id: str) -> dict[str, Any]:
        """Returns an evaluation as a parsed JSON object."""
        found: dict[str, Any] = json.loads(
            self.run("info", "evaluation", "show", evaluation_id, "-f", "json")
        )
        return found

    def rows(self, report: str, evaluation_id: str) -> Sequence[Mapping[str, str]]:
        """Returns the rows of a report on an evaluation."""
        printed = self.run("info", "evaluation", report, "--id", evaluation_id, "-f", "csv")
        return list(csv.DictReader(io.StringIO(printed)))

    def serve(self) -> subprocess.Popen[str]:
        """Starts an agent on a free port."""
        command = [*_AGENT, "serve", "--port=0"]
        return subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE, text=True)


def _same_accuracy(commands: Commands) -> str:
    here = commands.shown(commands.predict(*_FEW))
    there = commands.shown(commands.predict("--gpu=false", *_FEW))
    assert here["using_gpu"] or not commands.device, "the evaluation does not say that it used the GPU"
    top1, expected = (shown["accuracy"]["top1_accuracy"] for shown in (here, there))
    assert abs(top1 - expected) <= 0.01, f"top-1 is {top1}, on the CPU {expected}"
    return f"top-1 {top1:.4f}, on the CPU {expected:.4f}"


def _random_weights(commands: Commands) -> str:
    shown = commands.shown(commands.predict(*_LARGE, "--batch_size=4", "--num_file_parts=2"))
    return f"{shown['timing']['throughput_inputs_per_s']:.0f} inputs/s"


def _layers(commands: Commands) -> str:
    rows = commands.rows("layers", commands.predict("--trace_level=FRAMEWORK_TRACE", *_FEW))
    assert rows, "there are no layers"
    return f"{len(rows)} layers"


def _kernels(commands: Commands) -> str:
    rows = commands.rows("cuda_launch", commands.predict("--trace_level=FULL_TRACE", *_FEW))
    if not rows:
        raise Skipped("the framework's profiler records no calls of CUDA")
    return f"{len(rows)} kernels, copies and calls"


def _samples(commands: Commands) -> str:
    rows = commands.rows("eventflow", commands.predict("--trace_level=FULL_TRACE", *_FEW))
    samples = [json.loads(row["attributes"]) for row in rows if row["name"] == "hardware_sample"]
    found = sorted({name.rpartition(".")[2] for sample in samples for name in sample})
    wanted = "gpu_memory_bytes" if commands.device else "process_memory_bytes"
    assert wanted in found, f"{len(samples)} samples, of {found}"
    return f"{len(samples)} samples of {', '.join(found)}"


def _urls(commands: Commands) -> str:
    with tempfile.TemporaryDirectory() as folder:
        from PIL import Image

        picture = Path(folder) / "1.png"
        Image.new("L", (8, 8), 128).save(picture)
        (Path(folder) / "list").write_text(f"{picture}\n")
        commands.predict(f"--urls_file_path={folder}/list", "--batch_size=1", command="urls")
    return ""


def _workload(commands: Commands) -> str:
    commands.predict("--initial_qps=50", "--duration=2", "--allow_invalid", command="workload")
    return ""


def _max_qps(commands: Commands) -> str:
    commands.predict("--time_budget=10", "--min_duration=0.5", "--allow_invalid", command="max-qps")
    return ""


def _generation(commands: Commands) -> str:
    if commands.framework != "PyTorch":
        raise Skipped("the package has no language model for it")
    load = ("--concurrency=4", "--max_batch_size=4", "--max_queries=40", "--output_tokens=200", "--warmup=1")
    found = []
    for device in (commands.device, ()):
        printed = commands.run("measure", "generation", "--seed=0", *device, *load)
        [published] = (line for line in printed.splitlines() if line.startswith("published"))
        found.append(commands.shown(published.split()[1]))
    assert found[0]["using_gpu"] or not commands.device, "the evaluation does not say that it used the GPU"
    reasons, expected = (each["generation"]["finish_reasons"] for each in found)
    assert reasons == expected, f"texts end by {reasons}, on the CPU by {expected}"
    return f"TPOT {found[0]['generation']['tpot_ms_p50']:.2f} ms, texts end by {reasons}"


def _training(commands: Commands) -> str:
    if commands.framework == "ONNXRuntime":
        raise Skipped("it trains no models")
    device = "gpu" if commands.device else "cpu"
    model = ("--model=deep_mnist", f"--framework_name={commands.framework}", f"--device={device}")
    printed = commands.run("bench", "training", *model, "--num_batches=20")
    [loss] = [line for line in printed.splitlines() if line.startswith("loss")]
    return " ".join(loss.split()[1:4])


def _operators(commands: Commands) -> str:
    names = ("conv2d", "conv3d", "dot", "lstm", "softmax", "slice_axis")
    options = (f"--framework_name={commands.framework}", "--shapes=small", "--run_backward", "--runs=3")
    printed = commands.run("op", "run", *names, *options, *commands.device, "-f", "csv")
    statuses = Counter(row["status"] for row in csv.DictReader(io.StringIO(printed)))
    assert statuses["measured"], statuses
    return ", ".join(f"{count} {status}" for status, count in statuses.items())


def _remote(commands: Commands) -> str:
    agent = commands.serve()
    try:
        assert agent.stdout is not None
        address = agent.stdout.readline().removeprefix("serving on ").strip()
        shown = commands.shown(commands.predict(f"--agent={address}", *_FEW))
        assert address in shown["agent"], shown["agent"]
        assert shown["using_gpu"] is bool(commands.device), shown["device"]
    finally:
        agent.terminate()
        agent.communicate(timeout=_TIMEOUT_S)
    return address


def _two_processes(commands: Commands) -> str:
    with ThreadPoolExecutor(2) as pool:
        ids = list(pool.map(lambda _: commands.predict(*_FEW), range(2)))
    return f"{len(ids)} at once"


def _another_device(commands: Commands) -> str:
    said = commands.run(*commands.evaluation("--gpu_device_id=99", *_FEW), code=_DEVICE_MISSING)
    assert len(said.strip().splitlines()) == 1, said
    return said.strip()


def _out_of_memory(commands: Commands) -> str:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD_MEMORY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline().strip() != "held":
            raise Skipped("PyTorch with CUDA, which holds the memory meanwhile, is not installed")
        done = commands.start(*commands.evaluation(*_LARGE, "--batch_size=64"))
    finally:
        holder.communicate(timeout=_TIMEOUT_S)
    said = done.stderr.strip().splitlines()[-1]
    assert done.returncode, "the evaluation has not failed"
    assert "memory" in said, said
    assert "Traceback" not in done.stderr, said
    return said


def _hardware(commands: Commands) -> str:
    rows = csv.DictReader(io.StringIO(commands.run("info", "system", "-f", "csv")))
    [gpus] = [row["value"] for row in rows if row["name"] == "gpus"]
    assert gpus != "none", "`agent info system` finds no GPU"
    return gpus


CHECKS: Mapping[str, Callable[[Commands], str]] = {
    "hardware": _hardware,
    "predict dataset, the CPU's accuracy": _same_accuracy,
    "predict dataset, random weights": _random_weights,
    "predict urls": _urls,
    "predict workload": _workload,
    "predict max-qps": _max_qps,
    "measure generation": _generation,
    "bench training": _training,
    "op run": _operators,
    "FRAMEWORK_TRACE": _layers,
    "FULL_TRACE": _kernels,
    "FULL_TRACE, hardware samples": _samples,
    "a served agent": _remote,
    "two processes on one GPU": _two_processes,
    "a GPU that is not there": _another_device,
    "a GPU whose memory is taken": _out_of_memory,
}


def main(names: Sequence[str]) -> int:
    """Runs the checks of some frameworks, and returns the exit code."""
    failed = 0
    for framework in names or FRAMEWORKS:
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            commands = Commands(framework, Path(folder))
            tried = commands.start(*commands.evaluation(*_FEW))
            if tried.returncode == _DEVICE_MISSING:
                print(f"skipped  {framework}: {tried.stderr.strip().splitlines()[-1]}")
                continue
            for name, check in CHECKS.items():
                try:
                    state, detail = "passed", check(commands)
                except Skipped as reason:
                    state, detail = "skipped", str(reason)
                except Exception as error:  # noqa: BLE001 - one check that fails must not hide the others
                    state, detail, failed = "failed", f"{type(error).__name__}: {error}", failed + 1
                print(f"{state:<8} {framework}: {name}{': ' if detail else ''}{detail}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
