"""Configurations of DLBS as plans: which cells they give, and what is said of the rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.evaluators.plans.cells import Cell, cells_of
from inferometer.evaluators.plans.dlbs import Imported, import_dlbs
from inferometer.evaluators.plans.plan import plan_of, read_plan
from inferometer.manifests.errors import ConfigurationError

EXPLORATION: dict[str, Any] = {
    "parameters": {
        "exp.num_warmup_batches": 1,
        "exp.num_batches": {"val": 10, "type": "int", "desc": "how many", "val_regexp": "[0-9]+"},
        "exp.status": "disabled",
        "exp.log_file": '${BENCH_ROOT}/$("${exp.gpus}".replace(",","."))$_${exp.effective_batch}.log',
        "mxnet.docker_image": "mx:17.11",
        "tensorflow.docker_image": "tf:17.11",
        "exp.docker": True,
    },
    "variables": {
        "exp.framework": ["tensorflow", "mxnet", "pytorch"],
        "exp.gpus": ["0", "0,1"],
        "exp.model": ["alexnet", "resnet50"],
        "exp.replica_batch": [16, 32, 64],
    },
    "extensions": [
        {
            "condition": {"exp.model": "alexnet", "exp.replica_batch": [32, 64]},
            "parameters": {"exp.status": ""},
        },
        {"condition": {"exp.model": "resnet(.*)", "exp.replica_batch": 16}, "parameters": {"exp.status": ""}},
    ],
}
MIXED: dict[str, Any] = {
    "parameters": {
        "exp.model": "resnet50",
        "exp.dtype": "float16",
        "exp.gpus": "",
        "mxnet.kv_store": "local",
        "pytorch.data_shuffle": True,
        "pytorch.env": ["OMP_NUM_THREADS=${own.threads}", "PATH=$PATH:/x", "A=$('b')$"],
        "runtime.env.LC_ALL": "C",
        "runtime.launcher": "numactl --cpunodebind=0",
        "own.threads": 2,
        "own.image": "none",
        "exp.docker_image": "${own.image}:1",
        "sys.plan_builder.var_order": ["exp.replica_batch", "exp.framework"],
        "exp.rerun": "onfail",
    },
    "variables": {
        "exp.framework": ["mxnet", "pytorch"],
        "exp.replica_batch": [8, 16],
        "exp.trial": [1, 2, 3],
    },
    "extensions": [
        {
            "condition": {"exp.framework": "(py|mx)", "exp.replica_batch": 16},
            "parameters": {"own.image": "${__condition.exp.framework_1}-${exp.model}"},
            "cases": [{"exp.docker": False}, {"exp.docker": True, "exp.num_batches": 5}],
        }
    ],
}
INFERENCE: dict[str, Any] = {
    "parameters": {
        "exp.phase": "inference",
        "exp.device_type": "gpu",
        "exp.num_batches": "$(10 * 50)$",
        "exp.num_warmup_batches": "$(uuid.uuid4())$",
        "exp.num_nodes": 2,
        "monitor.frequency": 0.1,
    },
    "variables": {
        "exp.model": ["resnet18", "vgg16"],
        "exp.dtype": ["float32", "int8"],
        "exp.gpu_title": ["T4"],
    },
    "extensions": [{"condition": {"exp.framework": "mxnet"}, "parameters": {"exp.replica_batch": 1}}],
}


def imported(configuration: dict[str, Any]) -> Imported:
    return import_dlbs(json.dumps(configuration), "imported")


def expanded(found: Imported) -> Sequence[Cell]:
    return cells_of(plan_of(found.plan, "plan"))


def test_an_exploration_keeps_its_extensions_and_what_is_disabled() -> None:
    found = imported(EXPLORATION)
    # 2 frameworks that are here, 2 lists of GPUs, and of 2 x 3 the 3 that extensions enable: 12
    cells = expanded(found)
    assert len(cells) == 12
    assert cells[0].argv == (
        *("bench", "training", "--num_warmup_batches=1", "--num_batches=10", "--framework_name=mxnet"),
        *("--gpus=0", "--model_name=alexnet", "--batch_size=32"),
    )
    containers = {cell.parameters["framework_name"]: cell.parameters.get("cell.container") for cell in cells}
    assert containers == {"mxnet": "mx:17.11", "pytorch": None}
    assert found.without_equal == (
        "exp.num_batches.val_regexp: a parameter has val, type, desc and val_domain",
        "exp.log_file: a plan names the folder and the log of each run itself",
        "tensorflow.*: framework tensorflow is not supported; frameworks of DLBS that are: mxnet, pytorch",
        "exp.framework=tensorflow: 6 of 18 cells are left out: not among the supported frameworks "
        "of DLBS: mxnet, pytorch",
    )


def test_options_of_a_framework_are_given_to_its_cells_alone() -> None:
    found = imported(MIXED)
    assert (found.plan["repeat"], found.plan["rerun"]) == (3, "onfail")
    cells = expanded(found)
    # 2 frameworks x 2 batches, of which those of 16 become 2 each: 6; the batch varies slowest
    chosen = [
        tuple(
            cell.parameters.get(name)
            for name in ("batch_size", "framework_name", "num_batches", "cell.container")
        )
        for cell in cells
    ]
    assert chosen == [
        (8, "mxnet", 100, "none:1"),
        (8, "pytorch", 100, "none:1"),
        (16, "mxnet", 100, None),
        (16, "mxnet", 5, "mx-resnet50:1"),
        (16, "pytorch", 100, None),
        (16, "pytorch", 5, "py-resnet50:1"),
    ]
    assert (found.cells, found.experiments) == (6, 18)  # of 3 trials
    for cell in cells:
        of_mxnet = cell.parameters["framework_name"] == "mxnet"
        assert ("--kv_store=local" in cell.argv) is of_mxnet
        assert ("--data_shuffle=true" in cell.argv) is not of_mxnet
        assert cell.parameters.get("cell.env.OMP_NUM_THREADS") == (None if of_mxnet else 2)
        assert cell.parameters["cell.env.LC_ALL"] == "C"
        assert cell.parameters["cell.launcher"] == "numactl --cpunodebind=0"
    assert [each.partition(":")[0] for each in found.without_equal] == ["pytorch.env PATH"]


def test_what_has_no_equal_is_said_with_its_reason() -> None:
    found = imported(INFERENCE)
    # 2 models in the one precision that is here
    cells = expanded(found)
    assert [cell.argv for cell in cells] == [
        (
            *("bench", "inference", "--device=gpu", "--num_batches=500", "--batch_size=1", "--dtype=float32"),
            f"--model_name={model}",
        )
        for model in ("resnet18", "vgg16")
    ]
    said = dict(each.split(": ", 1) for each in found.without_equal)
    assert said["exp.num_warmup_batches"] == (
        "uuid.uuid4 is not among the functions of a plan's expressions; write the value, or add an "
        "extension with the value for each condition"
    )
    assert said["exp.gpu_title"] == "it changes no option, so that its values make one cell"
    assert said["exp.dtype=int8"] == (
        "2 of 4 cells are left out: dtype takes float, float32, float16 and bfloat16"
    )
    assert sorted(said) == [
        *("exp.dtype=int8", "exp.gpu_title", "exp.num_warmup_batches", "monitor.frequency")
    ]


@pytest.mark.parametrize("configuration", [EXPLORATION, MIXED, INFERENCE])
def test_a_plan_is_the_same_from_its_file(configuration: dict[str, Any], tmp_path: Path) -> None:
    found = imported(configuration)
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(found.plan, sort_keys=False), encoding="utf-8")
    assert [cell.id for cell in cells_of(read_plan(path))] == [cell.id for cell in expanded(found)]


def test_dlbs_takes_the_first_gpu_where_none_is_named() -> None:
    assert imported({"parameters": {"exp.model": "vgg16"}}).plan["parameters"]["gpus"] == "0"
    assert "gpus" not in imported({"parameters": {"exp.device_type": "cpu"}}).plan["parameters"]


def test_a_condition_on_a_default_of_dlbs_is_decided_by_it() -> None:
    extension = {"condition": {"exp.phase": "inference"}, "parameters": {"exp.replica_batch": 1}}
    (cell,) = expanded(imported({"extensions": [extension]}))
    assert cell.parameters["batch_size"] == 16


def test_a_second_phase_is_a_plan_of_its_own() -> None:
    found = imported({"variables": {"exp.phase": ["inference", "training"]}})
    assert found.plan["command"] == "bench inference"
    assert found.without_equal == (
        "exp.phase=training: 1 cells are left out: a plan has one command; import the configuration with "
        "this phase alone too",
    )


def test_a_loader_alone_is_ingestion() -> None:
    configuration = {"parameters": {"exp.framework": "pytorch", "pytorch.data_loader_only": True}}
    assert imported(configuration).plan["command"] == "bench ingestion"


def test_a_nested_reference_keeps_the_parameters_of_frameworks() -> None:
    found = imported(
        {
            "parameters": {
                "mxnet.docker_image": "mx:1",
                "pytorch.docker_image": "torch:1",
                "tensorrt.docker_image": "trt:1",
                "exp.docker_image": "${${exp.framework}.docker_image}",
                "exp.log_file": "${BENCH_ROOT}/a.log",
            },
            "variables": {"exp.framework": ["mxnet", "pytorch"]},
        }
    )
    assert [cell.parameters["cell.container"] for cell in expanded(found)] == ["mx:1", "torch:1"]


def test_what_refers_to_what_is_left_out_is_left_out_too() -> None:
    configuration = {"parameters": {"exp.data_dir": "/data/${exp.id}", "exp.model": "vgg16"}}
    found = imported(configuration)
    assert "data_dir" not in expanded(found)[0].options
    assert found.without_equal == ("data_dir: it refers to exp.id, which the plan lacks; write its value",)


@pytest.mark.parametrize(
    ("given", "folder", "device"),
    [
        ({"exp.gpus": "0,1"}, "/data/32-2-gpu-real", {"gpus": "0,1"}),
        ({"exp.gpus": ""}, "/data/16-0-cpu-real", {"gpus": ""}),
        ({"exp.num_gpus": 2}, "/data/16-2-gpu-real", {"num_gpus": 2}),
    ],
)
def test_what_dlbs_computes_is_computed_for_what_refers_to_it(
    given: dict[str, Any], folder: str, device: dict[str, Any]
) -> None:
    text = "/data/${exp.effective_batch}-${exp.num_gpus}-${exp.device_type}-${exp.data}"
    read = {"parameters": {"exp.model_opts": "${own.data}"}}
    parameters = {**given, "own.data": text, "exp.data_dir": "/d"}
    [cell] = expanded(imported({"parameters": parameters, "extensions": [read]}))
    assert cell.options["model_opts"] == folder
    assert cell.options.keys() & {"device", "gpus", "num_gpus"} == device.keys()


HERE = {"exp.framework": "pytorch", "exp.replica_batch": 4}
FOREIGN = ("tensorflow", "caffe2", "bvlc_caffe", "nvidia_caffe", "intel_caffe", "tensorrt", "openvino")


@pytest.mark.parametrize("framework", FOREIGN)
@pytest.mark.parametrize(
    "configuration",
    [
        {"parameters": HERE, "variables": {"exp.framework": ["pytorch", "FOREIGN"]}},
        {"parameters": HERE, "extensions": [{"cases": [{"exp.framework": "FOREIGN"}, {}]}]},
        {
            "parameters": {**HERE, "own": "FOREIGN"},
            "extensions": [{"cases": [{"exp.framework": "${own}"}, {}]}],
        },
        {
            "parameters": {"exp.framework": "FOREIGN", "exp.replica_batch": 4},
            "extensions": [{"cases": [{"exp.framework": "pytorch"}, {}]}],
        },
        {"variables": {"exp.framework_id": ["pytorch", "FOREIGN"], "exp.replica_batch": [4]}},
        {"variables": {"exp.framework_title": ["pytorch", "FOREIGN"], "exp.replica_batch": [4]}},
        {"variables": {"exp.framework_family": ["pytorch", "FOREIGN"], "exp.replica_batch": [4]}},
    ],
)
def test_cells_of_another_framework_are_left_out_and_counted(
    configuration: dict[str, Any], framework: str
) -> None:
    text = json.dumps(configuration).replace("FOREIGN", framework)
    found = import_dlbs(text, "imported")
    (cell,) = expanded(found)
    assert (cell.options["framework_name"], cell.options["batch_size"]) == ("pytorch", 4)
    assert found.without_equal == (
        f"exp.framework={framework}: 1 of 2 cells are left out: not among the supported frameworks "
        "of DLBS: mxnet, pytorch",
    )


@pytest.mark.parametrize("name", ["exp.framework", "exp.framework_id", "exp.framework_title"])
@pytest.mark.parametrize("section", ["parameters", "variables"])
def test_a_configuration_of_another_framework_alone_is_refused(name: str, section: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        imported(
            {section: {name: "tensorrt"}, "extensions": [{"cases": [{"exp.model": "a"}, {"exp.model": "b"}]}]}
        )
    assert str(refusal.value) == (
        "DLBS's configuration: none of its 2 experiments has an equivalent here: exp.framework=tensorrt: not "
        "among the supported frameworks of DLBS: mxnet, pytorch"
    )


@pytest.mark.parametrize("value", ["$(uuid.uuid4())$", "${own.framework}"])
def test_a_framework_that_is_not_known_is_not_the_default(value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^DLBS's configuration: exp\.framework: "):
        imported({"parameters": {"exp.framework": value}})


def test_a_precision_without_an_equal_leaves_out_its_cells_wherever_it_is_set() -> None:
    found = imported({"extensions": [{"cases": [{"exp.dtype": "int8"}, {"exp.dtype": "float16"}]}]})
    assert [cell.options["dtype"] for cell in expanded(found)] == ["float16"]
    assert found.without_equal[0].startswith("exp.dtype=int8: 1 of 2 cells are left out: ")


def test_cells_of_another_phase_that_an_extension_sets_are_left_out() -> None:
    cases = [{"exp.phase": "inference", "exp.replica_batch": 1}, {"exp.replica_batch": 2}]
    found = imported({"extensions": [{"cases": cases}]})
    assert [cell.options["batch_size"] for cell in expanded(found)] == [2]
    assert found.without_equal[0].startswith("exp.phase=inference: 1 cells are left out: ")


def test_where_the_ranks_of_several_hosts_meet_is_left_out() -> None:
    found = imported(
        {
            "parameters": {
                "exp.framework": "pytorch",
                "pytorch.distributed_rendezvous": "node1:29500",
                "pytorch.distributed_rank": 0,
                "mxnet.rendezvous": "ib0:node1:29500",
            }
        }
    )
    assert not expanded(found)[0].options.keys() & {"rank", "rank_address"}
    reason = "the ranks of a cell with cell.nodes do not need it"
    assert found.without_equal == tuple(
        f"{name}: {reason}"
        for name in ("pytorch.distributed_rendezvous", "pytorch.distributed_rank", "mxnet.rendezvous")
    )


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("exp.framwork", "exp.framework"),
        ("exp.frameworks", "exp.framework"),
        ("exp.modle", "exp.model"),
        ("pytroch.data_dir", "pytorch.data_dir"),
        ("runtime.luncher", "runtime.launcher"),
    ],
)
@pytest.mark.parametrize(
    "configuration",
    [
        {"parameters": {"exp.model": "vgg16", "NAME": "a"}},
        {"parameters": {"exp.model": "vgg16"}, "variables": {"NAME": ["a", "b"]}},
        {"parameters": {"exp.model": "vgg16"}, "extensions": [{"parameters": {"NAME": "a"}}]},
        {"parameters": {"exp.model": "vgg16"}, "extensions": [{"condition": {"NAME": "a"}}]},
        {"parameters": {"exp.model": "${NAME}"}},
    ],
)
def test_a_typing_error_is_refused(configuration: dict[str, Any], name: str, nearest: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        import_dlbs(json.dumps(configuration).replace("NAME", name), "imported")
    assert str(refusal.value) == (
        f'DLBS\'s configuration: unknown parameter "{name}"; did you mean "{nearest}"?'
    )


def test_a_parameter_that_nothing_reads_is_said() -> None:
    found = imported({"parameters": {"exp.gpu_id": "t4", "exp.model_title": "VGG"}})
    assert found.without_equal == ("exp.gpu_id: DLBS has no such parameter, and nothing refers to it",)


BASE: dict[str, Any] = {
    "parameters": {
        "exp.framework": {"val": "", "type": "str"},
        "exp.framework_family": {"val": "${exp.framework}", "type": "str"},
        "exp.data_dir": {"val": "${${exp.framework_family}.data_dir}", "type": "str"},
        "exp.docker_image": {"val": "${${exp.framework_family}.docker_image}", "type": "str"},
        "exp.num_local_gpus": {"val": "$(len('${exp.gpus}'.split()))$", "type": "int"},
        "exp.log_file": {"val": "${exp.framework}_${exp.id}.log", "type": "str"},
        "exp.log_dir": "${BENCH_ROOT}/logs",
        "pytorch.host_python_path": {"val": "${HOME}/pytorch", "type": "str"},
        "mxnet.env": {"val": "", "type": "str"},
    }
}
"""The shape of DLBS's own configuration: no framework, and nested references through its family."""


@pytest.mark.parametrize(
    ("framework", "cell"),
    [("", ("", None, None)), ("pytorch", ("pytorch", "", None)), ("mxnet", ("mxnet", None, "mx:1"))],
)
def test_the_defaults_of_dlbs_expand(framework: str, cell: tuple[Any, ...]) -> None:
    given = {"exp.framework": framework, "pytorch.data_dir": "", "mxnet.docker_image": "mx:1"}
    found = imported({"parameters": BASE["parameters"] | (given if framework else {})})
    (only,) = expanded(found)
    shown = (only.parameters.get(name) for name in ("framework_name", "data_dir", "cell.container"))
    assert tuple(shown) == cell


def test_what_the_environment_lacks_is_left_out() -> None:
    text = json.dumps({"parameters": {"exp.data_dir": "${DATA_ROOT}/imagenet", "exp.model": "vgg16"}})
    assert "data_dir" not in import_dlbs(text, "imported").plan["parameters"]
    found = import_dlbs(text, "imported", {"DATA_ROOT": "/data"})
    (cell,) = cells_of(plan_of(found.plan, "plan"), environment={"DATA_ROOT": "/data"})
    assert cell.options["data_dir"] == "/data/imagenet"


NAMES = (
    *("exp.framework", "exp.framework_family", "exp.framework_title", "exp.model", "exp.phase", "exp.dtype"),
    *("exp.gpus", "exp.replica_batch", "exp.data_dir", "exp.docker_image", "exp.docker", "exp.status"),
    *("exp.log_file", "exp.effective_batch", "exp.trial", "exp.gpu_title", "runtime.env.LC_ALL", "own.a"),
    *("mxnet.kv_store", "mxnet.env", "pytorch.docker_image", "pytorch.data_dir", "tensorrt.cache"),
    *("pytorch.distributed_rendezvous", "runtime.launcher", "monitor.frequency"),
)
TEXTS = st.sampled_from(
    [
        *("", "mxnet", "pytorch", "tensorrt", "bvlc_caffe", "training", "inference", "int8", "float16"),
        *("0,1", "0:1", "a b", "${exp.model}", "${own.a}", "${own.a}:${exp.model}", "${HOME}/x", "disabled"),
        *("${${exp.framework}.docker_image}", "${${exp.framework_family}.data_dir}", "A=${own.a}"),
        *("${exp.effective_batch}", "${__condition.exp.framework_0}", "$(1 + 1)$", "$(uuid)$"),
        "$(${exp.num_gpus} * 2)$",
    ]
)
VALUES = TEXTS | st.integers(0, 64) | st.booleans()
PARAMETERS = st.dictionaries(
    st.sampled_from(NAMES), VALUES | st.fixed_dictionaries({"val": VALUES, "desc": st.just("")}), max_size=8
)
EXTENSIONS = st.fixed_dictionaries(
    {
        "condition": st.dictionaries(
            st.sampled_from(NAMES), st.sampled_from(["mxnet", "(py|mx)", "0", [1, 16], True]), max_size=2
        ),
        "parameters": PARAMETERS,
        "cases": st.lists(PARAMETERS, max_size=2),
    }
)
CONFIGURATIONS = st.fixed_dictionaries(
    {
        "parameters": PARAMETERS,
        "variables": st.dictionaries(
            st.sampled_from(NAMES), st.lists(VALUES, min_size=1, max_size=3), max_size=3
        ),
        "extensions": st.lists(EXTENSIONS, max_size=2),
    }
)


@settings(max_examples=100, deadline=None)
@given(CONFIGURATIONS)
def test_what_is_imported_expands_and_is_of_frameworks_that_are_here(configuration: dict[str, Any]) -> None:
    try:
        found = imported(configuration)
    except ConfigurationError as error:
        refusal = str(error)
    else:
        refusal = ""
        _check_cells(found)
    assert "\n" not in refusal


def _check_cells(found: Imported) -> None:
    plan = yaml.safe_load(yaml.safe_dump(found.plan))
    for cell in cells_of(plan_of(plan, "plan")):
        assert cell.parameters.get("framework_name") in (None, "", "mxnet", "pytorch")
        assert cell.options.get("dtype") != "int8"
        assert not cell.options.keys() & {"rank", "rank_address"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"parameters": {} // none\n}', "DLBS's configuration: cannot be read as JSON: "),
        ("[" * 100_000, "DLBS's configuration: cannot be read as JSON: "),
        ("[]", "DLBS's configuration: has neither parameters nor variables nor extensions"),
        ('{"parameters": []}', "DLBS's configuration: parameters: is not an object"),
        ('{"extensions": {}}', "DLBS's configuration: extensions: is not a list"),
        ('{"extensions": [{"cases": {}}]}', "DLBS's configuration: extensions.0.cases: is not a list"),
        (
            '{"extensions": [{"cases": [1]}]}',
            "DLBS's configuration: extensions.0.cases: has an item that is not an object",
        ),
        (
            '{"parameters": {"exp.model": {"type": "str"}}}',
            "DLBS's configuration: parameters.exp.model: has no val",
        ),
        (
            '{"parameters": {"exp.phase": "dreaming"}}',
            'DLBS\'s configuration: exp.phase: unknown phase "dreaming"',
        ),
        ('{"parameters": {"exp.rerun": "often"}}', "DLBS's configuration: rerun: "),
    ],
)
def test_what_is_no_configuration_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        import_dlbs(text, "imported")
    assert str(refusal.value).startswith(message)
    assert "\n" not in str(refusal.value)


def test_the_name_is_that_of_a_plan() -> None:
    with pytest.raises(ConfigurationError, match=r"^DLBS's configuration: name: "):
        import_dlbs('{"parameters": {}}', "a/b")
