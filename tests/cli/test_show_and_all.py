"""One evaluation shown, all reports in one folder, raw layers, and undisturbed latency."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from inferometer.evaluators.reports.base import REPORTS
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_store
from tests.cli.conftest import Agent, FilledOnce

EVALUATE = ("predict", "dataset", "--framework_name=PyTorch", "--batch_size=16", "--num_file_parts=3")
OTHERS = (
    "workload",
    "parts",
    "max_qps",
    "mix",
    "mix_search",
    "ingestion",
    "training",
    "training_steps",
    "weak_scaling",
    "strong_scaling",
    "operators",
    "memory",
    "tuning",
    "generation",
)
"""The reports on other kinds of measurement."""
REPORT = ("info", "evaluation")


@pytest.fixture
def leveled(agent: Agent, filled_once: FilledOnce) -> tuple[str, str]:
    """The evaluations of a group: under no profiler, and under one."""
    filled_once(lambda: agent(*EVALUATE, "--leveled"))
    rows = agent(*REPORT, "duration", "-f", "csv").rows
    levels = {row["trace_level"]: row["id"] for row in rows}
    return levels["MODEL_TRACE"], levels["FRAMEWORK_TRACE"]


def test_show_tells_what_ran_the_figures_the_heaviest_layers_and_the_trace(
    agent: Agent, leveled: tuple[str, str]
) -> None:
    undisturbed, profiled = leveled

    answer = agent(*REPORT, "show", profiled)

    assert answer.code == 0
    assert answer.figure("evaluation") == f"{profiled}  complete"
    assert answer.figure("model").startswith("DigitsCNN 1.0")
    assert "48 inputs predicted" in answer.figure("dataset")
    assert "FRAMEWORK_TRACE" in answer.figure("trace")
    assert f"agent trace export {profiled}" in answer.stdout
    assert answer.figure("group") == f"{undisturbed}  MODEL_TRACE"
    rows = agent(*REPORT, "layers", "--id", profiled, "-f", "csv").rows
    heaviest = sorted(rows, key=lambda row: -float(row["share_percent"]))[:10]
    shown = answer.stdout[answer.stdout.index("heaviest") :].splitlines()[:10]
    for line, row in zip(shown, heaviest, strict=True):
        assert f"{float(row['share_percent']):.1f} %" in line
        assert row["layer_name"] in line
        assert row["layer_type"] in line
    assert f"of {len(rows)} layers" in answer.stdout


def test_a_latency_under_the_profiler_is_not_shown_as_the_models(
    agent: Agent, leveled: tuple[str, str]
) -> None:
    undisturbed, profiled = leveled
    [row] = agent(*REPORT, "latency", "--id", undisturbed, "-f", "csv").rows

    shown = agent(*REPORT, "show", profiled)
    assert f"mean {float(row['latency_ms_mean']):.3f}" in shown.figure("latency")
    assert f"of {undisturbed} (MODEL_TRACE): no profiler slowed it down" in shown.stdout

    alone = agent(*EVALUATE, "--trace_level=FRAMEWORK_TRACE")
    assert "under the framework's profiler" in alone.stdout
    assert "under the framework's profiler" in agent(*REPORT, "show", alone.figure("evaluation")).stdout
    assert "under the framework's profiler" not in agent(*REPORT, "show", undisturbed).stdout


def test_the_latency_report_leaves_profiled_evaluations_out_and_says_so(
    agent: Agent, leveled: tuple[str, str]
) -> None:
    answer = agent(*REPORT, "latency", "-f", "csv")
    assert [row["id"] for row in answer.rows] == [leveled[0]]
    assert "left out 1 of 2 evaluations: they ran under a profiler" in answer.error

    everything = agent(*REPORT, "throughput", "--include_profiled", "-f", "csv")
    assert [row["id"] for row in everything.rows] == [*leveled[::-1]]
    assert not everything.stderr


def test_show_of_what_is_not_there_or_is_a_group_says_what_to_do(
    agent: Agent, leveled: tuple[str, str]
) -> None:
    missing = agent(*REPORT, "show", "nobody")
    assert missing.code == 2
    assert "holds no evaluation nobody; agent info evaluations lists them" in missing.error

    group = json.loads(agent(*REPORT, "show", leveled[0], "-f", "json").stdout)["group_id"]
    answer = agent(*REPORT, "show", group)
    assert answer.code == 2
    assert f"{group} is a group of evaluations; name one of" in answer.error


def test_show_of_an_untraced_evaluation(agent: Agent) -> None:
    answer = agent(*EVALUATE, "--trace_level=NO_TRACE", "--weights=random", "--seed=7")
    shown = agent(*REPORT, "show", answer.figure("evaluation"))
    assert shown.figure("trace") == "none (NO_TRACE)"
    assert "heaviest" not in shown.stdout
    assert "weights: random, seed 7" in shown.figure("model")
    assert "the weights are random" in shown.figure("accuracy")


def test_the_beginning_of_an_id_is_enough_where_only_one_begins_so(
    agent: Agent, leveled: tuple[str, str], tmp_path: Path
) -> None:
    undisturbed, profiled = leveled
    group = json.loads(agent(*REPORT, "show", profiled, "-f", "json").stdout)["group_id"]

    def only(wanted: str) -> str:
        others = {undisturbed, profiled, group} - {wanted}
        return next(wanted[:n] for n in range(1, 37) if not any(o.startswith(wanted[:n]) for o in others))

    assert agent(*REPORT, "show", only(profiled)).figure("evaluation") == f"{profiled}  complete"
    assert agent("trace", "export", only(profiled), "-o", tmp_path / "trace.json").code == 0
    [row] = agent(*REPORT, "latency", "--id", only(undisturbed), "-f", "csv").rows
    assert row["id"] == undisturbed
    rows = agent(*REPORT, "accuracy", "--id", only(group), "-f", "csv").rows
    assert {row["id"] for row in rows} == {undisturbed, profiled}
    assert "is a group of evaluations" in agent(*REPORT, "show", only(group)).error


def test_the_beginning_of_several_ids_is_refused_and_they_are_named(agent: Agent, tmp_path: Path) -> None:
    agent(*EVALUATE, "--trace_level=NO_TRACE")
    store = open_store(None, "inferometer", tmp_path / "data")
    [evaluation] = store.find(EvaluationFilter())
    for number in range(7):
        store.save(replace(evaluation, id=f"same-{number}"))
    store.close()

    for call in ((*REPORT, "show"), ("trace", "export"), (*REPORT, "latency", "--id")):
        answer = agent(*call, "same")
        assert (answer.code, answer.stdout) == (2, "")
        assert "7 ids begin with same: same-0, same-1, same-2, same-3, same-4 and 2 more; " in answer.error
    nothing = agent(*REPORT, "latency", "--id", "", "-f", "csv")
    assert (nothing.code, nothing.rows) == (0, [])
    assert "no evaluation in" in nothing.error


def test_show_gives_the_same_as_an_object(agent: Agent, leveled: tuple[str, str]) -> None:
    undisturbed, profiled = leveled
    shown = json.loads(agent(*REPORT, "show", profiled, "-f", "json").stdout)

    [latency] = agent(*REPORT, "latency", "--id", undisturbed, "-f", "csv").rows
    timing = shown["timing"]
    assert (timing["evaluation_id"], timing["under_profiler"]) == (undisturbed, False)
    assert str(timing["latency_ms_mean"]) == latency["latency_ms_mean"]
    assert sum(timing["stage_share_percent"].values()) == pytest.approx(100)
    layers = agent(*REPORT, "layers", "--id", profiled, "-f", "csv").rows
    assert shown["layers"] == len(layers)
    shares = sorted((float(row["share_percent"]) for row in layers), reverse=True)
    assert [layer["share_percent"] for layer in shown["heaviest_layers"]] == shares[:10]
    assert shown["trace"]["spans"] == len(agent(*REPORT, "eventflow", "--id", profiled, "-f", "csv").rows)
    assert shown["group"] == [{"id": undisturbed, "trace_level": "MODEL_TRACE"}]
    alone = agent(*EVALUATE, "--trace_level=FRAMEWORK_TRACE").figure("evaluation")
    shown = json.loads(agent(*REPORT, "show", alone, "-f", "JSON").stdout)
    assert (shown["timing"]["evaluation_id"], shown["timing"]["under_profiler"]) == (alone, True)


def test_raw_layers_add_up_to_the_layers(agent: Agent, leveled: tuple[str, str]) -> None:
    layers = agent(*REPORT, "layers", "-f", "csv").rows
    for report in ("layers", "layer_tree"):
        raw = agent(*REPORT, report, "--raw", "-f", "csv").rows
        assert len(raw) == 3 * len(layers)
        assert {row["batch"] for row in raw} == {"0", "1", "2"}
        for layer in layers:
            runs = [row for row in raw if row["layer_index"] == layer["layer_index"]]
            assert {row["layer_name"] for row in runs} == {layer["layer_name"]}
            assert sum(float(row["duration_us"]) for row in runs) == pytest.approx(float(layer["total_us"]))
    answer = agent(*REPORT, "layers", "--raw", "--top_layers=3")
    assert (answer.code, "leave out --top_layers" in answer.error) == (2, True)


def test_all_writes_every_report_in_every_format(
    agent: Agent, leveled: tuple[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "reports"

    answer = agent(*REPORT, "all", "-o", folder, "-f", "csv", "-f", "JSON", "-f", "table", "--plot", "svg")

    assert answer.code == 0
    written = {path.name for path in folder.iterdir()}
    assert {f"{name}.{ending}" for name in REPORTS for ending in ("csv", "json", "txt")} <= written
    assert {name for name in written if name.endswith(".svg")} == {
        f"{name}.svg" for name in REPORTS if name not in ("cuda_launch", *OTHERS)
    }
    assert sorted(answer.stdout.split()) == sorted(str(folder / name) for name in written)
    for name in REPORTS:
        alone = agent(*REPORT, name, "-f", "csv").stdout
        assert (folder / f"{name}.csv").read_text() == alone
        rows = json.loads((folder / f"{name}.json").read_text())
        assert len(rows) == len(alone.splitlines()) - 1
    latency, kernels = answer.stderr.splitlines()
    assert latency.startswith("latency: left out 1 of 2 evaluations: they ran under a profiler")
    assert kernels.startswith("cuda_launch: none of the 2 evaluations was traced deep enough")
    assert "--trace_level=SYSTEM_LIBRARY_TRACE" in kernels
    assert list(tmp_path.glob(".inferometer*")) == []


def test_all_refuses_a_folder_that_is_there_and_leaves_nothing_half(
    agent: Agent, leveled: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "mine.txt").write_text("kept")
    refused = agent(*REPORT, "all", "-o", folder)
    assert refused.code == 7
    assert "exists; overwrite its reports (--overwrite)" in refused.error
    assert agent(*REPORT, "all", "-o", folder, "--overwrite").code == 0
    assert (folder / "mine.txt").read_text() == "kept"
    assert (folder / "latency.csv").exists()

    assert agent(*REPORT, "all", "-o", folder / "mine.txt").code == 7
    assert "cannot be created" in agent(*REPORT, "all", "-o", tmp_path / "no" / "where").error

    monkeypatch.setattr("inferometer.evaluators.kinds.reports.LayersReport.rows_of", lambda *_: iter([{}]))
    with pytest.raises(KeyError):
        agent(*REPORT, "all", "-o", tmp_path / "broken")
    assert not (tmp_path / "broken").exists()
    assert list(tmp_path.glob(".inferometer*")) == []


@pytest.mark.parametrize("folder", [".", "", "link", "there/", "dangling"])
def test_all_writes_into_a_folder_however_it_is_named(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    for name in ("there", "elsewhere"):
        (tmp_path / "here" / name).mkdir(parents=True)
    (tmp_path / "here" / "link").symlink_to("elsewhere")
    (tmp_path / "here" / "dangling").symlink_to("later")
    monkeypatch.chdir(tmp_path / "here")

    answer = agent(*REPORT, "all", "-o", folder, "--overwrite")

    assert answer.code == 0
    assert answer.stdout.split() == [str(Path(folder, f"{name}.csv")) for name in sorted(REPORTS)]
    assert all(Path(line).is_file() for line in answer.stdout.split())
    assert all((tmp_path / "here" / name).is_symlink() for name in ("link", "dangling"))
    assert list(tmp_path.rglob(".inferometer*")) == []


def test_all_without_evaluations_has_headings_and_says_so(agent: Agent, tmp_path: Path) -> None:
    answer = agent(*REPORT, "all", "-o", tmp_path / "reports", "--plot", "html")
    assert answer.code == 0
    assert "no evaluation in" in answer.error
    assert len((tmp_path / "reports" / "layers.csv").read_text().splitlines()) == 1
    assert not list((tmp_path / "reports").glob("*.html"))
