"""The tutorials and configurations of DLBS as plans, compared with what DLBS's own builder makes of them.

The facts are in ``tests/data/dlbs_tutorials.json``. With ``DLBS_ROOT``, the path of a checkout of DLBS, its
builder and processor run beside ours, and all parameters of all experiments are compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inferometer.client.cli.main import parsed_command
from inferometer.evaluators.plans.cells import Cell, cells_of
from inferometer.evaluators.plans.dlbs_lines import PLANNED, CommandLine, command_line, command_lines
from inferometer.evaluators.plans.dlbs_names import DEFAULTS
from inferometer.evaluators.plans.plan import plan_of, read_plan
from tests.optional_mxnet import mxnet

FACTS = json.loads((Path(__file__).parents[1] / "data" / "dlbs_tutorials.json").read_text(encoding="utf-8"))
LINES = {each["lines"][0]: each for each in FACTS["command_lines"]}
NOT_REFUSED = "dlcookbook/introduction.sh:59"
"""It names no framework: DLBS builds the experiment, and cannot run it."""
ON_CPU = ("-P", "gpus=", "-P", "exp.docker=false")


def of_this_machine(words: list[str], folder: Path) -> list[str]:
    """The options for what a command line requires of its machine: its nodes, and a folder of libraries."""
    given = {"num_nodes": "cell.nodes=1", "host_libpath": f"mxnet.host_libpath={folder}"}
    return [word for name, each in given.items() if name in " ".join(words) for word in ("-P", each)]


def option_values(cell: Cell) -> str:
    """The options of a cell, as its command reads them, in the order of the facts' columns."""
    options = parsed_command(cell.argv).params
    numbers = (options["batch_size"], options["num_batches"] or 100, options["num_warmup_batches"])
    first = (cell.options["framework_name"], cell.words[1], options["model"])
    return " ".join(map(str, (*first, *numbers, cell.options.get("dtype", "float32"), cell.options["gpus"])))


@pytest.mark.parametrize("name", LINES)
def test_a_tutorial_gives_the_experiments_of_dlbs_and_passes_the_check(
    agent: Any, name: str, tmp_path: Path
) -> None:
    line, target = LINES[name], tmp_path / "plan.yaml"
    answer = agent("plan", "import-dlbs", "-o", target, "--", *line["words"])
    if line["supported"] or name == NOT_REFUSED:
        assert answer.code == 0, answer.stderr
        assert answer.stderr.startswith(f"imported    dlbs: experiments in DLBS: {line['experiments']}, ")
        found = cells_of(read_plan(target), os.environ) if line["supported"] else ()
        assert {option_values(each) for each in found} == set(line["cells"])
        assert not line["supported"] or mxnet.nd
        checked = agent("plan", "check", target, *ON_CPU, *of_this_machine(line["words"], tmp_path))
        assert checked.code == (0 if line["supported"] else 2), checked.stderr
    elif line["experiments"]:
        nothing = f"none of its {line['experiments']} experiments has an equivalent here: exp.framework="
        assert nothing in answer.error
    else:
        assert answer.error.endswith("sets no parameter, so DLBS builds no experiment")


def test_of_the_tutorials_what_is_left_out_is_counted() -> None:
    experiments = {name: sum(each[name] for each in LINES.values()) for name in ("experiments", "supported")}
    assert sum(FACTS["left_out"].values()) == experiments["experiments"] - experiments["supported"]
    supported = sum(1 for each in LINES.values() if each["supported"])
    assert (supported, len(LINES), experiments) == (11, 40, {"experiments": 998, "supported": 121})


def test_the_defaults_are_those_of_dlbs() -> None:
    assert {name: DEFAULTS[name] for name in FACTS["defaults"]} == FACTS["defaults"]


ROOT = Path(os.environ.get("DLBS_ROOT", ""))
RECORDED = {"exp.id": "1", "runtime.python": "python"}
"""What DLBS computes with uuid and sys, which expressions of plans lack."""
DIFFERENT = {
    "mxnet.args": "a truth value within a text is true, and True in DLBS",
    "exp.gpus": "the text 0, of the parameter's type, is the number 0 in DLBS",
    "caffe.env": "DLBS strips the colon before it replaces the reference in the name of another",
}
"""The parameters that differ, each with the reason."""
BUILT = """
import contextlib, io, json, logging, sys
from dlbs.experimenter import Experimenter
from dlbs.processor import Processor
logging.disable(logging.CRITICAL)
answers = []
for case in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()):
        built = Experimenter()
        built.init(**case)
        base = json.loads(json.dumps(built.config))
        built.build_plan()
        enabled = [each for each in built.plan if each.get("exp.status") != "disabled"]
        Processor(built.param_info).compute_variables(enabled)
    types = {name: each.get("type") for name, each in built.param_info.items()}
    answers.append({"base": base, "types": types, "experiments": enabled})
json.dump(answers, sys.stdout)
"""


def in_dlbs(lines: list[CommandLine]) -> list[dict[str, Any]]:
    cases = [
        {
            "action": "run",
            "config": each.configuration or None,
            "params": dict(each.parameters),
            "vars": dict(each.variables),
            "extensions": list(each.extensions),
            "discard_default_config": not each.defaults,
        }
        for each in lines
    ]
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILT],
        input=json.dumps(cases),
        env={**ENVIRONMENT, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    **dict.fromkeys(("HOME", "BENCH_ROOT", "CUDA_CACHE_PATH"), "/here"),
    "DLBS_ROOT": str(ROOT),
    **dict.fromkeys(("http_proxy", "https_proxy"), ""),
}
FRAMEWORKS = (
    *("mxnet", "pytorch", "tensorflow", "caffe2", "bvlc_caffe", "nvidia_caffe", "intel_caffe", "nvcnn"),
    *("nvtfcnn", "openvino", "tensorrt"),
)


def of_the_checkout() -> list[CommandLine]:
    """Every command line of the scripts, every configuration, and DLBS's own for each of its frameworks."""
    values = {"mxnet": ["-Pmxnet.rank=0"], "openvino": LINES["recipes/openvino/config.json"]["words"][1:]}
    scripts = [*ROOT.glob("tutorials/dlcookbook/*.sh"), *ROOT.glob("tutorials/recipes/**/run")]
    found = [
        ["run", f"--config={path}", *values.get(path.parent.name, [])]
        for path in ROOT.glob("tutorials/**/*.json")
    ]
    found += [["run", f'-Pexp.framework="{each}"', '-Pexp.model="vgg16"'] for each in FRAMEWORKS]
    lines = [command_line(each) for each in found]
    for path in scripts:
        for line in command_lines(path.read_text("utf-8"), ["0", "1"], {}):
            if isinstance(line, ValueError):  # a shell computes the run's id of Caffe2's ranks
                assert "caffe2" in path.parts
                continue
            within = str(path.parent / line.configuration) if line.configuration else ""
            lines += [replaced(line, configuration=within)] if line.action in PLANNED else []
    return [replaced(each, parameters={**each.parameters, **RECORDED}) for each in lines]


def replaced(line: CommandLine, **given: Any) -> CommandLine:
    return CommandLine(**{**vars(line), **given})


@pytest.mark.skipif(not os.environ.get("DLBS_ROOT"), reason="DLBS_ROOT names no checkout of DLBS")
def test_all_parameters_of_all_experiments_are_those_of_dlbs() -> None:
    lines = of_the_checkout()
    differing: dict[str, Any] = {}
    for line, answer in zip(lines, in_dlbs(lines), strict=True):
        if line.defaults and not line.configuration:
            own = {name: answer["base"]["parameters"][name] for name in FACTS["defaults"]}
            assert own == FACTS["defaults"]
        content = json.loads(line.applied(json.dumps(answer["base"])))
        types = answer["types"]
        content["parameters"] = {
            name: value if isinstance(value, list) else {"val": value, "type": types.get(name)}
            for name, value in content["parameters"].items()
        }
        plan = plan_of({"name": "dlbs", "command": "bench", **content}, "plan")
        cells = [each.parameters for each in cells_of(plan, ENVIRONMENT, distinct=False)]
        cells = [each for each in cells if each.get("exp.status") != "disabled"]
        expected = answer["experiments"] or [RECORDED]
        assert len(cells) == len(expected), line
        for ours, theirs in zip(cells, expected, strict=True):
            assert ours.keys() == theirs.keys(), line
            texts = {name: " ".join(map(str, v)) if isinstance(v, list) else v for name, v in ours.items()}
            differing |= {name: (line, texts[name], v) for name, v in theirs.items() if texts[name] != v}
    assert differing.keys() == DIFFERENT.keys(), differing
    assert len(lines) == 10 + len(FRAMEWORKS) + 35
