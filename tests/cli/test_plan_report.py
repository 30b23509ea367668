"""``agent plan report`` on a plan that ran here: tables, objectives, scaling, pictures, wrong options."""

from __future__ import annotations

import json

import pytest

from inferometer.client.cli.main import run

PLAN = """\
name: small
command: predict dataset
parameters:
  model_name: DigitsCNN
  framework_name: ONNXRuntime
  num_file_parts: 40
variables:
  batch_size: [1, 4]
  threads: [1, 2]
extensions:
- condition: {batch_size: 4, threads: 2}
  cases: [{}, {gpu: true}]
"""
RATE = "throughput_inputs_per_s"
THREE = ("--minimize=run_s", f"--maximize={RATE}", "--maximize=top1_accuracy")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder of a plan of five cells, of which the one on a GPU fails on a machine without one."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "small.yaml").write_text(PLAN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENT_DATA_DIR", str(folder / "data"))
        patch.setenv("AGENT_CACHE_DIR", str(folder / "cache"))
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        run(["plan", "run", str(folder / "small.yaml"), "--unchecked"])
    return folder


@pytest.fixture
def report(ran, agent, monkeypatch):
    """Runs ``agent plan report`` on it."""
    monkeypatch.setenv("AGENT_DATA_DIR", str(ran / "data"))
    return lambda *words: agent("plan", "report", ran / "small.yaml", *words)


def _rows(answer):
    assert answer.code == 0, answer.stderr
    return json.loads(answer.stdout)


def test_the_first_score_of_a_task_is_an_objective(report):
    rows = _rows(report("-f", "json", "--maximize=score", "--value=top1_accuracy"))
    assert len(rows) == 4
    assert all(row["score"] == row["top1_accuracy"] > 0.9 for row in rows)


def test_the_table_has_a_row_for_each_cell_that_is_complete(report):
    answer = report("-f", "json", "--value=latency_ms_mean", "--sort=-batch_size,threads")
    rows = _rows(answer)

    assert [(row["batch_size"], row["threads"]) for row in rows] == [(4, 1), (4, 2), (1, 1), (1, 2)]
    assert all(row["latency_ms_mean"] > 0 for row in rows)
    assert "1 of 5 runs are not complete, and are left out." in answer.stderr.splitlines()
    assert any(line.startswith("One repetition of each cell") for line in answer.stderr.splitlines())


def test_figures_are_sorted_by_their_values_though_people_read_them_with_intervals(report):
    exact = _rows(report("-f", "json", f"--value={RATE}", f"--sort=-{RATE}"))
    shown = report(f"--value={RATE}", f"--sort=-{RATE}").stdout.splitlines()

    values = [row[RATE] for row in exact]
    assert values == sorted(values, reverse=True)
    assert [line.split()[0] for line in shown[1:]] == [str(row["batch_size"]) for row in exact]


def test_the_best_under_a_condition(report):
    rows = _rows(
        report("-f", "json", f"--maximize={RATE}", "--where=latency_ms_mean < 10000", "--value=run_s")
    )

    values = [row[RATE] for row in rows]
    assert values == sorted(values, reverse=True)
    assert rows[0].keys() >= {"tie", "holds", "latency_ms_mean_high", "run_s"}


def test_where_no_cell_fulfils_it_the_nearest_is_told(report):
    answer = report(f"--maximize={RATE}", "--where=latency_ms_mean <= 0.000001")
    assert answer.code == 2
    [line] = [line for line in answer.stderr.splitlines() if line.startswith("agent: ")]
    assert line.startswith("agent: no cell fulfils latency_ms_mean <= 0.000001; the nearest, ")


def test_the_front_and_its_picture(report, tmp_path):
    picture = tmp_path / "front.svg"
    rows = _rows(report("-f", "json", f"--maximize={RATE}", "--minimize=latency_ms_mean", "--plot", picture))

    assert rows[0]["front"] is True
    text = picture.read_text()
    assert ">on the front<" in text
    assert ">mean (ms)" in text


@pytest.mark.parametrize("ending", ["svg", "png", "html"])
def test_a_table_and_its_picture(report, tmp_path, ending):
    picture = tmp_path / f"table.{ending}"

    assert report("--columns=batch_size", "--plot", picture).code == 0
    assert picture.stat().st_size > 1000
    again = report("--plot", picture)
    assert again.code != 0
    assert "--overwrite" in again.stderr
    assert report("--plot", picture, "--overwrite").code == 0


def test_scaling_over_threads(report):
    rows = _rows(report("-f", "json", "--scaling=strong", "--value=latency_ms_mean"))

    assert [(row["batch_size"], row["threads"]) for row in rows] == [(1, 1), (1, 2), (4, 1), (4, 2)]
    assert [row["speedup"] for row in rows if row["threads"] == 1] == [1.0, 1.0]
    for one, two in (rows[:2], rows[2:]):
        assert two["speedup"] == pytest.approx(one["latency_ms_mean"] / two["latency_ms_mean"])
        assert two["uncapped_efficiency_percent"] == pytest.approx(50 * two["speedup"])


def test_gpu_cells_that_failed_are_told(report):
    answer = report("--gpu_advice")
    assert answer.code == 2
    assert (
        "there is none on a GPU: 1 run on a GPU is not complete, such as " in answer.stderr.splitlines()[-1]
    )


def test_what_failed_has_its_reason(report):
    [row] = _rows(report("--failed", "-f", "json"))
    assert row["ended"] == "failed"
    assert "gpu=true" in row["cell"]
    assert row["reason"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows=batchsize"], 'no cell has "batchsize"; did you mean "batch_size"?'),
        (["--value=latency"], 'no cell has the figure "latency"'),
        (["--rows=threads"], "fall into one place of the table: they differ in batch_size"),
        (["--where=batch_size"], '"batch_size" is not a condition, such as "latency_ms_p99 <= 50"'),
        (["--where=batch_size > many"], '"batch_size > many" cannot be decided for "1"'),
        (["--where=batch_size > 99"], "no cell fulfils batch_size > 99; the nearest, "),
        (["--maximize=speed"], 'no cell has the figure "speed"'),
        ([f"--maximize={RATE}", f"--minimize={RATE}"], f'"{RATE}" is a duplicate objective; leave out one'),
        ([f"--maximize={RATE}", "--scaling=weak"], "--maximize and --scaling are two reports"),
        ([f"--maximize={RATE}", "--columns=threads"], "--maximize has its own rows and columns"),
        (["--scaling=linear"], "'linear' is not one of 'weak', 'strong'"),
        (["--scaling=weak", "--over=framework_name"], '"framework_name" has no numbers'),
        (["--scaling=weak", "--value=top1_accuracy"], '"top1_accuracy" is neither a time nor a rate'),
        (["--over=threads"], "--over requires --scaling or --gpu_advice"),
        (["--cores_per_gpu=4"], "--cores_per_gpu requires --gpu_advice"),
        (["--gpu_advice", "--cores_per_gpu=0"], "0.0 is not in the range x>0"),
        (["--sort=speed"], 'unknown column "speed"'),
        (["--plot=table.gif"], 'the picture "table.gif" ends in ".gif"'),
        (["--plot=a.svg", "-o", "a.svg"], "the picture and the rows cannot both go to"),
        (["--failed", "--plot=a.svg"], "--failed has no picture; leave out --plot"),
        (["--failed", "--value=run_s"], "--failed shows runs without figures; leave out --value"),
        ([*THREE, "--plot=a.svg"], "--plot draws one or two objectives; leave out the others, or --plot"),
    ],
)
def test_a_wrong_option_is_one_line(report, words, message):
    answer = report(*words)
    assert answer.code == 2
    assert answer.stdout == ""
    [line] = [line for line in answer.stderr.splitlines() if "not complete" not in line]
    assert message in line
