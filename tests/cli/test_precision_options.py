"""``--dtype`` and ``--cudnn_benchmark``: here, at an agent, stored, shown and compared; right and wrong."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Agent

RANDOM = ("--model_name=DeepMNIST", "--framework_name=PyTorch", "--weights=random", "--synthetic")
DATASET = ("predict", "dataset", *RANDOM, "--batch_size=2", "--num_file_parts=3")


def shown(agent: Agent, evaluation: str) -> str:
    return agent("info", "evaluation", "show", evaluation).stdout


@pytest.mark.parametrize(
    ("given", "precision", "benchmark"),
    [
        ((), "float32", None),
        (("--dtype=float", "--cudnn_benchmark"), "float32", True),
        (("--dtype", "FLOAT32", "--cudnn_benchmark=true"), "float32", True),
        (("--dtype=float16",), "float16", None),
        (("--dtype=bfloat16", "--cudnn_benchmark=false"), "bfloat16", False),
    ],
)
def test_the_precision_is_what_runs_and_is_stored_and_shown_with_cudnn_benchmark(
    agent: Agent, given: tuple[str, ...], precision: str, benchmark: bool | None
) -> None:
    done = agent(*DATASET, *given)
    assert done.code == 0, done.stderr
    assert (f", {precision}, local)" in done.stderr + done.stdout) is (precision != "float32")
    evaluation = done.figure("evaluation")
    text = "" if benchmark is None else f", cudnn_benchmark={str(benchmark).lower()}"
    assert f"\nprecision     {precision}{text}\n" in shown(agent, evaluation)
    document = json.loads(agent("info", "evaluation", "show", evaluation, "-f", "json").stdout)
    assert document["cudnn_benchmark"] is benchmark
    (row,) = agent("info", "evaluation", "latency", "-f", "csv").rows
    assert row["precision"] == precision


@pytest.mark.parametrize(
    ("command", "precision"),
    [
        (("workload", "--concurrency=1", "--min_duration=0.05", "--min_queries=4"), "bfloat16"),
        (("max-qps", "--latency_bound=50", "--min_duration=0.05", "--time_budget=1"), "float16"),
    ],
)
def test_a_load_is_put_on_a_model_in_the_precision(
    agent: Agent, command: tuple[str, ...], precision: str
) -> None:
    flags = (f"--dtype={precision}", "--cudnn_benchmark=false", "--allow_invalid", "--warmup=1")
    done = agent("predict", *command, *RANDOM, *flags)
    assert done.code == 0, done.stderr
    assert f"\nprecision     {precision}, cudnn_benchmark=false\n" in shown(agent, done.figure("evaluation"))


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (("--dtype=int8",), 2, ("--dtype", "float16")),
        (("--dtype=",), 2, ("--dtype",)),
        (("--cudnn_benchmark=perhaps",), 2, ("--cudnn_benchmark", "use true or false")),
        (("--framework_name=ONNXRuntime", "--dtype=bfloat16"), 2, ("ONNXRuntime", "use float32 or float16")),
        (("--framework_name=MXNet", "--dtype=float16"), 2, ("on cpu", "use bfloat16 or float32")),
        (
            (
                "--model_name=DigitsCNN",
                "--framework_name=ONNXRuntime",
                "--weights=pretrained",
                "--dtype=float16",
            ),
            2,
            ("is a file and has its own precision", "float16"),
        ),
        (("--agent=kserve://127.0.0.1:1", "--dtype=float16"), 2, ("leave out --dtype",)),
    ],
)
def test_what_cannot_be_is_one_line(
    agent: Agent, arguments: tuple[str, ...], code: int, parts: tuple[str, ...]
) -> None:
    refused = agent(*DATASET, "--publish=false", *arguments)
    assert refused.code == code, refused.stderr
    assert all(part in refused.error for part in parts), refused.error


def test_compare_names_the_precision_as_a_difference(agent: Agent) -> None:
    few = (*DATASET, "--num_file_parts=8")
    full, half = (agent(*few, f"--dtype={name}").figure("evaluation") for name in ("float32", "bfloat16"))
    compared = agent("compare", full, half)
    assert "differs: precision: float32 (A), bfloat16 (B)" in compared.stderr


def test_a_served_agent_runs_it_in_the_precision(agent: Agent, served_agent: str) -> None:
    flags = ("--dtype=bfloat16", "--cudnn_benchmark=true")
    done = agent(*DATASET, f"--agent={served_agent}", *flags)
    assert done.code == 0, done.stderr
    assert "\nprecision     bfloat16, cudnn_benchmark=true\n" in shown(agent, done.figure("evaluation"))
    refused = agent(*DATASET, f"--agent={served_agent}", "--framework_name=MXNet", "--dtype=float16")
    assert refused.code != 0
    assert "use bfloat16 or float32" in refused.error


def test_what_is_asked_for_is_in_the_library_too(agent: Agent) -> None:
    import inferometer as im
    from inferometer.manifests.errors import ConfigurationError

    common = {"framework": "PyTorch", "weights": "random", "synthetic": True, "min_batches": 4}
    runs = im.sweep("DeepMNIST", precision=["float32", "bfloat16"], batch_size=2, **common)
    assert [run.evaluation.system.precision for run in runs] == [im.Precision.FLOAT32, im.Precision.BFLOAT16]
    run = im.evaluate("DeepMNIST", precision="float16", cudnn_benchmark=True, batch_size=2, **common)
    system = run.evaluation.system
    assert (system.precision, system.cudnn_benchmark) == (im.Precision.FLOAT16, True)
    with pytest.raises(ConfigurationError, match='unknown precision "half"; give one of float32, float16'):
        im.evaluate("DeepMNIST", precision="half", **common)
