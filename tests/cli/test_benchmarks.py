"""``agent bench`` as a user of DLBS runs it, with both frameworks, on tiny models."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from inferometer.evaluators.kinds.registry import again
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_store

FRAMEWORKS = ("PyTorch", "MXNet")
TINY = ("--model=deep_mnist", "--batch_size=4", "--num_batches=5")
TINIER = ("--model=DigitsCNN", *TINY[1:])
DIGITS = "manifests/builtin/datasets/digits_validation/digits_validation.zip"
# the pattern of DLBS's parser of logs
DLBS = re.compile(r"[ \t]*__(.+?(?=__[ \t]*[=]))__[ \t]*=(.+)")


def dlbs_values(text: str) -> dict[str, Any]:
    """What DLBS's parser makes of an output."""
    found = (DLBS.match(line) for line in text.splitlines())
    return {match[1]: json.loads(match[2]) for match in found if match}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_training_is_measured_shown_stored_and_reported(agent, framework):
    answer = agent("bench", "training", *TINY, f"--framework_name={framework}")
    assert answer.code == 0, answer.stderr
    assert answer.stderr == ""
    assert answer.stdout.startswith(f"DeepMNIST 1.0 on {framework} ")
    assert "5 full steps of 5" in answer.figure("step")
    assert re.fullmatch(r"\d\.\d{4} → \d+\.\d{4} in 6 steps, 1 of them to warm up", answer.figure("loss"))
    [row] = agent("info", "evaluation", "training", "-f", "csv").rows
    assert (row["framework_name"], row["batch_size"], row["measured_steps"]) == (framework, "4", "5")
    assert float(row["forward_ms"]) > 0
    assert row["bound"] == "compute"
    steps = agent("info", "evaluation", "training_steps", "-f", "csv").rows
    assert [step["samples"] for step in steps] == ["4"] * 5
    elapsed_s = sum(float(step["whole_us"]) for step in steps) / 1e6
    assert float(row["throughput_samples_per_s"]) * elapsed_s == pytest.approx(20, rel=1e-3)
    shown = agent("info", "evaluation", "show").stdout
    assert "bound by" in shown
    assert "loss" in shown
    document = json.loads(agent("info", "evaluation", "show", "-f", "json").stdout)
    assert document["training"]["options"]["optimizer"] == "sgd"


@pytest.mark.parametrize(("phase", "framework"), [("training", "PyTorch"), ("inference", "MXNet")])
def test_the_parser_of_dlbs_reads_the_output(agent, framework, phase):
    answer = agent("bench", phase, *TINY, f"--framework_name={framework}", "--output=dlbs")
    assert answer.code == 0, answer.stderr
    found = dlbs_values(answer.stdout)
    assert found["exp.model"] == "deep_mnist"
    assert found["exp.model_title"] == "DeepMNIST"
    assert (found["exp.phase"], found["exp.replica_batch"], found["exp.effective_batch"]) == (phase, 4, 4)
    assert (found["exp.num_gpus"], found["exp.device_type"]) == (0, "cpu")
    assert found["exp.framework_ver"] == found[f"{framework.lower()}.version"]
    assert len(found["results.time_data"]) == 5
    assert found["results.time"] == pytest.approx(sum(found["results.time_data"]) / 5)
    assert found["results.throughput"] == pytest.approx(1000 * 4 / found["results.time"])
    assert found["results.time_std"] >= 0
    assert found["results.status"] == "ok"


def test_a_failure_has_its_status_in_the_output_for_dlbs(agent):
    answer = agent("bench", "training", *TINY, "--dtype=float16", "--output=dlbs", "--framework_name=PyTorch")
    assert answer.code == 2
    assert "float16" in answer.error
    found = dlbs_values(answer.stdout)
    assert found["results.status"] == "failure"
    assert "results.time" not in found


PYTORCH_BENCHMARKS = (  # the arguments of DLBS's launcher
    "--model=deep_mnist --forward_only=false --batch_size=4 --num_batches=2 --num_warmup_batches=1 "
    "--num_gpus=1 --device=cpu --data_backend=caffe_lmdb --data_shuffle=false --dtype=float "
    "--num_loader_threads=4 --cudnn_benchmark=true --cudnn_fastest=false"
)
MXNET_BENCHMARKS = (
    "--model=deep_mnist --forward_only=false --batch_size=4 --num_batches=2 --num_warmup_batches=1 "
    "--num_gpus=1 --device=cpu --kv_store=device --data_dir= --dtype=float"
)


@pytest.mark.parametrize(
    ("line", "framework"), [(PYTORCH_BENCHMARKS, "PyTorch"), (MXNET_BENCHMARKS, "MXNet")]
)
def test_the_arguments_of_dlbs_run_without_a_subcommand(agent, line, framework):
    answer = agent("bench", *line.split())
    assert answer.code == 0, answer.stderr
    assert f"on {framework} " in answer.stdout
    assert "2 full steps of 2" in answer.figure("step")
    assert "num_gpus 1 changes nothing" in answer.stderr


@pytest.mark.parametrize(
    "flags", [("--forward_only=true",), ("--forward_only", "true"), ("--phase=inference",)]
)
def test_forward_only_is_inference_that_the_latency_report_shows(agent, flags):
    answer = agent("bench", *TINY, *flags, "--framework_name=PyTorch")
    assert answer.code == 0, answer.stderr
    assert "over 5 full batches" in answer.figure("latency")
    [row] = agent("info", "evaluation", "latency", "-f", "csv").rows
    assert (row["model_name"], row["batch_size"], row["measured_batches"]) == ("DeepMNIST", "4", "5")


def test_inference_repeats_a_dataset_until_the_batches_are_measured(agent):
    answer = agent(
        "bench", "inference", "--model=DigitsCNN", "--framework_name=PyTorch", f"--data_dir={DIGITS}",
        "--batch_size=150", "--num_batches=5",
    )  # fmt: skip
    assert answer.code == 0, answer.stderr
    assert "over 5 full batches" in answer.figure("latency")


def test_inference_of_a_larger_dataset_ends_after_its_batches(agent):
    answer = agent(
        "bench", "inference", "--model=DigitsCNN", "--framework_name=PyTorch", f"--data_dir={DIGITS}",
        "--batch_size=10", "--num_batches=3",
    )  # fmt: skip
    assert answer.code == 0, answer.stderr
    assert "over 3 full batches" in answer.figure("latency")


def test_inference_takes_the_format_that_is_named_and_says_what_it_has_not(agent, tmp_path):
    archive = tmp_path / "digits.zip"
    archive.write_bytes(Path(DIGITS).read_bytes())
    options = (
        "bench", "inference", "--model=DigitsCNN", "--framework_name=PyTorch", f"--data_dir={archive}",
        "--batch_size=4", "--num_batches=2",
    )  # fmt: skip
    named = agent(*options, "--data_backend=recordio")
    assert named.code == 4
    assert "holds no record of RecordIO" in named.error
    given = agent(
        *options, "--data_shuffle=true", "--loader=processes", "--drop_cache=true", "--num_workers=1"
    )
    assert given.code == 0, given.stderr
    for name in ("data_shuffle", "loader processes", "drop_cache"):
        assert f"{name} changes nothing" in given.stderr
    assert json.loads(agent("info", "evaluation", "show", "-f", "json").stdout)["preprocess_threads"] == 1


def test_weights_that_cannot_be_written_are_refused_before_the_training(agent):
    answer = agent(
        "bench", "training", "--model=DigitsCNN", "--num_batches=2", "--save_weights=/proc/weights"
    )
    assert answer.code == 7
    assert answer.stderr == "agent: /proc/weights: cannot be written: No such file or directory\n"
    assert answer.stdout == ""


@pytest.mark.parametrize(
    "options",
    [
        ("training", "--num_gpus=9223372036854775808"),
        ("training", "--batch_size=9223372036854775808"),
        ("ingestion", "--batch_size=9223372036854775808", f"--data_dir={DIGITS}"),
        ("training", "--num_workers=9223372036854775808", f"--data_dir={DIGITS}"),
        ("training", "--num_batches=9223372036854775808"),
        ("training", "--num_warmup_batches=9223372036854775808"),
        ("training", "--num_epochs=9223372036854775808"),
    ],
)
def test_numbers_beyond_all_machines_are_one_line(agent, options):
    phase, given, *more = options
    answer = agent("bench", phase, "--model=DigitsCNN", "--framework_name=PyTorch", given, *more)
    assert answer.code == 2, answer.stderr
    assert answer.stderr.count("\n") == 1
    assert "at most" in answer.error or "not in the range" in answer.error


def test_a_model_learns_its_dataset_is_validated_and_saved(agent, tmp_path):
    weights = tmp_path / "weights.bin"
    answer = agent(
        "bench", "training", "--model=DigitsCNN", "--framework_name=PyTorch", f"--data_dir={DIGITS}",
        "--num_epochs=12", "--batch_size=50", "--optimizer=adam", "--lr=0.003", "--data_shuffle=true",
        "--num_workers=2", "--validation_dataset=digits_validation", f"--save_weights={weights}",
    )  # fmt: skip
    assert answer.code == 0, answer.stderr
    assert float(answer.figure("top-1").split()[0]) > 0.9  # of what it has seen
    assert "450 of" not in answer.figure("step")
    assert "(zip), shuffled by seed 0, by 2 threads, 10 batches ahead" in answer.figure("data")
    assert weights.stat().st_size > 1000
    again = agent("bench", "training", "--model=DigitsCNN", f"--save_weights={weights}")
    assert again.code == 7
    assert "exists already" in again.error


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--model=resnet51",), 2, r'unknown model "resnet51"; did you mean'),
        (("--kv_store=foo",), 2, r"'foo' is not one of 'local', 'device', 'dist_sync'"),
        (("--kv_store=device", "--framework_name=PyTorch"), 2, "kv_store device is MXNet's"),
        (("--kv_store=horovod",), 2, "kv_store horovod .* use dist_device_sync"),
        (("--kv_store=local", "--num_ranks=2"), 2, "kv_store local is for one process"),
        (("--dist_backend=gloo", "--framework_name=MXNet"), 2, "dist_backend gloo is for PyTorch"),
        (("--dist_backend=mpi", "--framework_name=PyTorch"), 2, "mpi is not in PyTorch's packages"),
        (("--input_layout=NHWC",), 2, "input_layout NHWC is not supported"),
        (("--model_layout=NHWC",), 2, "model_layout NHWC is not supported"),
        (("--use_dali=true",), 2, "use_dali is not supported"),
        (("--nvidia_layers",), 2, "nvidia_layers needs NVIDIA's build"),
        (('--model_opts={"num_classes": 7}',), 2, "num_classes cannot be set to 7"),
        (("--model_opts=[1]",), 2, "is not a JSON object"),
        (("--data_backend=tfrecord",), 2, 'unknown data_backend "tfrecord"; did you mean "recordio"'),
        (("--data_dir=/nowhere",), 4, "/nowhere"),
        (("--data=synthetic/device", "--data_dir=/tmp"), 2, "is synthetic; leave out the dataset"),
        (("--batch_size=0",), 2, "0 is not in the range x>=1"),
        (("--num_epochs=1", "--num_batches=2"), 2, "both end the run"),
        (("--validation_dataset=digit_validation",), 2, 'unknown dataset "digit_validation"'),
        (("--optimizer=lamb",), 2, "'lamb' is not one of"),
        (("--momentum=2",), 2, "momentum is 2.0; allowed: 0 to 1"),
        (("--gpus=0,0",), 2, "names a GPU twice"),
        (("--num_gpus=2", "--gpus=0"), 2, "num_gpus is 2, but gpus names 1"),
        (("--save_weights=/nowhere/w.pt",), 7, "the folder /nowhere does not exist"),
        (("--data_shuffle=maybe",), 2, '"maybe" is not a boolean'),
        (("--framework_name=ONNXRuntime",), 2, "cannot train models"),
        (("--drop_cache",), 2, "drop_cache is for files"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(agent, flags, code, message):
    answer = agent("bench", "training", *TINY[:2], *flags)
    assert (answer.code, bool(re.search(message, answer.error))) == (code, True), answer.error


def test_no_gpu_is_an_error_and_not_the_cpu(agent):
    answer = agent("bench", "training", *TINY, "--device=gpu", "--framework_name=PyTorch")
    assert answer.code in {0, 3}  # a machine may have one
    assert answer.code or "gpu:0" in answer.stdout


def test_inference_on_several_gpus_is_refused(agent):
    answer = agent("bench", "--forward_only=true", "--num_gpus=2", *TINY)
    assert answer.code == 2
    assert "inference runs on one GPU, and 2 are named" in answer.error


@pytest.mark.parametrize(
    "said",
    [
        {
            "--cudnn_fastest=true": "cudnn_fastest is a switch of Lua Torch",
            "--workspace=1024": "workspace changes nothing",
            "--data=synthetic/pinned": "is in host memory",
            "--data_backend=image_folder": "changes nothing: without data_dir",
        },
        {"--data=synthetic/gpu": "which is the CPU's"},
    ],
)
def test_what_changes_nothing_is_accepted_and_says_so(agent, said):
    answer = agent("bench", "training", *TINIER, *said, "--framework_name=MXNet", "--publish=false")
    assert answer.code == 0
    lines = answer.stderr.splitlines()
    assert len(lines) == len(said)
    for text in said.values():
        assert [text in line for line in lines].count(True) == 1, (text, lines)


def test_data_on_the_device_is_copied_once(agent):
    answer = agent("bench", "training", *TINIER, "--data=synthetic/device", "--framework_name=PyTorch")
    assert answer.code == 0
    assert answer.figure("data") == "synthetic, on the device, copied once"
    [row] = agent("info", "evaluation", "training", "-f", "csv").rows
    assert float(row["copy_ms"]) == 0


@pytest.mark.usefixtures("needs_mxnet")
def test_a_comparison_of_two_trainings(agent):
    for _ in range(2):
        agent("bench", "training", *TINIER, "--num_batches=20", "--framework_name=MXNet")
    ids = [row["id"] for row in agent("info", "evaluation", "training", "-f", "csv").rows]
    answer = agent("compare", *ids, "--threshold=0.9", "-f", "csv")
    assert answer.code in {0, 1}, answer.stderr
    assert {row["figure"] for row in answer.rows} >= {"p50", "throughput"}


@pytest.mark.usefixtures("needs_mxnet")
def test_a_training_that_is_interrupted_keeps_its_steps(agent):
    command = [sys.executable, "-c", "from inferometer.client.cli.main import main; main()"]
    flags = ["bench", "training", *TINIER, "--num_batches=1000000", "--framework_name=MXNet"]
    with subprocess.Popen(
        [*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        assert process.stdout is not None
        # the first line is printed before the warm-up, and from then on a signal requests to stop
        assert process.stdout.readline().startswith("DigitsCNN")
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "stopping after this step" in err
    if "steps were kept" in err:  # else it was stopped in the warm-up
        assert "loss" in out
        assert agent("info", "evaluation", "training", "--include_interrupted", "-f", "csv").rows


def test_help_lists_the_benchmarks(agent):
    answer = agent("bench", "--help")
    assert answer.code == 0
    assert {"training", "inference", "ingestion"} <= set(
        re.findall(r"^  (\w+) ", answer.stdout, re.MULTILINE)
    )


def test_a_training_knows_the_command_that_repeats_it(agent):
    flags = ("--optimizer=adam", "--lr=0.002", "--framework_name=MXNet", "--seed=3")
    assert agent("bench", "training", *TINIER, *flags).code == 0
    with closing(open_store(None, "inferometer", Path(os.environ["AGENT_DATA_DIR"]))) as store:
        [evaluation] = store.find(EvaluationFilter())
    words = shlex.split(again(evaluation).line)
    assert words[:3] == ["agent", "bench", "training"]
    assert agent(*words[1:]).code == 0
    rows = agent("info", "evaluation", "training", "-f", "csv").rows
    for name in ("first_loss", "optimizer", "batch_size", "measured_steps", "threads", "dataset_name"):
        assert rows[0][name] == rows[1][name]


def test_ingestion_loads_a_dataset_and_is_reported(agent):
    flags = ("--model=DigitsCNN", f"--data_dir={DIGITS}", "--batch_size=50", "--num_batches=20")
    answer = agent("bench", "ingestion", *flags, "--output=dlbs")
    assert answer.code == 0, answer.stderr
    assert "% of the dataset was in it before" in answer.figure("page cache")
    found = dlbs_values(answer.stdout)
    assert found["exp.phase"] == "data_ingestion"
    assert len(found["results.time_data"]) == 20
    same = agent("bench", "--data_loader_only=true", *flags)
    assert same.code == 0
    assert len(agent("info", "evaluation", "ingestion", "-f", "csv").rows) == 2


def test_ingestion_needs_a_dataset(agent):
    answer = agent("bench", "ingestion", "--model=DigitsCNN")
    assert answer.code == 2
    assert "give data_dir" in answer.error
