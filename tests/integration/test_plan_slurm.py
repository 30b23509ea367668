"""Plans on a real Slurm of two nodes: a lost node, a cancelled job, a killed driver, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from inferometer.client.cli.main import run as agent
from inferometer.evaluators.plans.cell_command import CellCommand
from inferometer.evaluators.plans.cells import Run, cells_of, runs_of
from inferometer.evaluators.plans.plan import SlurmOptions, plan_of
from inferometer.evaluators.plans.running.driver import Driver, RunEvent
from inferometer.evaluators.plans.running.folder import Ended, PlanFolder
from inferometer.evaluators.plans.running.places import SlurmPlace
from inferometer.manifests.errors import ConfigurationError
from tests.integration.slurm_cluster import SlurmCluster, wait_for

MAIN = "from inferometer.client.cli.main import main; main()"
ROOT = Path(__file__).parents[2]
SHORT = "import time; time.sleep(0.3)"
HELD = """
import os, pathlib, time
time.sleep(0.5)
hold = pathlib.Path({hold!r})
while (hold / "on").exists():
    (hold / os.environ["SLURM_JOB_ID"]).touch()
    time.sleep(0.05)
"""
CODE = "import sys, pathlib; exec(sys.argv[2]); pathlib.Path(sys.argv[1]).open('a').write('x')"


@pytest.fixture
def cluster(slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """A cluster whose commands this process calls."""
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, slurm_cluster.environment[name])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return slurm_cluster


def driver_of(
    folder: Path,
    cells: int,
    code: str = SHORT,
    arguments: Sequence[str] = (),
    seen: list[RunEvent] | None = None,
) -> Driver:
    """What drives a plan on the cluster; each run that ends well adds a letter to the file of its name."""
    plan = plan_of({"name": "s", "command": "c", "variables": {"n": list(range(cells))}}, "s")

    def command(run: Run) -> CellCommand:
        return CellCommand((sys.executable, "-c", CODE, str(folder / f"{run.key}.note"), code))

    runs = tuple(runs_of(plan, cells_of(plan)))
    place = SlurmPlace(SlurmOptions(arguments=list(arguments)), poll_s=0.3)
    on_progress = (lambda _: None) if seen is None else seen.append
    return Driver(plan, runs, PlanFolder(folder), place, command, str(folder), on_progress=on_progress)


def test_a_plan_completes_although_a_node_is_lost_and_a_job_is_cancelled(
    cluster: SlurmCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path))
    folder, file = tmp_path / "plans" / "s", tmp_path / "s.yaml"
    hold = tmp_path / "hold"
    hold.mkdir()
    driver = driver_of(folder, 8, HELD.format(hold=str(hold)))
    file.write_text(f"{{name: s, command: c, variables: {{n: {list(range(8))}}}}}")
    done: set[str] = set()

    def holding() -> set[str]:
        """The jobs on the node that cannot end."""
        running = cluster.run("squeue", "-h", "-o", "%i", "--nodelist=c1", "--states=running").split()
        return set(running) & {path.name for path in hold.glob("[0-9]*")}

    def disturb(progress: RunEvent) -> None:
        if progress.result is not None and "node" not in done:
            done.add("node")
            (hold / "on").touch()
            wait_for(lambda: bool(holding()))
            cluster.node_down("c1")
            (hold / "on").unlink()
        elif progress.result is not None and "job" not in done:
            done.add("job")
            jobs = cluster.run("squeue", "-h", "-o", "%t %i").splitlines()
            # the last one that waits, if any does: one that runs may just end
            _, last = max((each.startswith("PD"), int(each.split()[1])) for each in jobs if each[:2] != "CG")
            cluster.run("scancel", str(last))
        elif progress.done >= 4 and "back" not in done:
            done.add("back")
            cluster.node_up("c1")

    driver.on_progress = disturb
    found = driver.drive()

    assert [each.result.ended for each in found.values() if each.result] == [Ended.COMPLETE] * 8
    assert {len(path.read_text()) for path in folder.glob("*.note")} == {1}
    agent(["plan", "status", str(file)])
    told = capfd.readouterr().out.splitlines()[2:]
    assert any("cancelled" in line for line in told), told
    restarted = "; before: slurm started it again, for the 1. time; now its job "
    assert [line.count(restarted) for line in told if "started it again" in line] == [1], told


def test_a_driver_that_is_killed_is_taken_up_again(
    cluster: SlurmCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path))
    folder, file = tmp_path / "plans" / "s", tmp_path / "s.yaml"
    file.write_text(f"{{name: s, command: c, variables: {{n: {list(range(4))}}}}}")
    code = (
        "from tests.integration.test_plan_slurm import driver_of; from pathlib import Path; "
        f"driver_of(Path({str(folder)!r}), 4, 'import time; time.sleep(2)').drive()"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: bool(list(folder.glob("runs/*/log.txt"))))
    process.kill()
    process.wait()

    assert agent(["plan", "watch", str(file)]) == 0  # the jobs go on, and it follows them without a driver
    assert capfd.readouterr().out.splitlines()[-1] == "runs        4: 4 complete"
    found = driver_of(folder, 4, "import time; time.sleep(2)").drive()

    assert [each.result.ended for each in found.values() if each.result] == [Ended.COMPLETE] * 4
    assert [each.losses for each in found.values()] == [[]] * 4
    assert {len(path.read_text()) for path in folder.glob("*.note")} == {1}


def test_a_job_that_a_killed_driver_did_not_note_is_adopted(cluster: SlurmCluster, tmp_path: Path) -> None:
    seen: list[RunEvent] = []
    driver = driver_of(tmp_path, 4, "import time; time.sleep(1)", seen=seen)
    driver.stop_requested = lambda: bool(seen)
    driver.drive()
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    assert len(lines) == 4
    journal.write_text("".join(lines[:-1]))  # as if the driver was killed after sbatch

    found = driver_of(tmp_path, 4, "import time; time.sleep(1)").drive()

    assert [each.result.ended for each in found.values() if each.result] == [Ended.COMPLETE] * 4
    folders = cluster.run("squeue", "-h", "--states=all", "--Format=WorkDir:200").split()
    assert sum(folder.startswith(str(tmp_path)) for folder in folders) == 4
    assert {len(path.read_text()) for path in tmp_path.glob("*.note")} == {1}


def test_a_job_that_dies_has_failed_without_accounting(cluster: SlurmCluster, tmp_path: Path) -> None:
    begin_s = time.monotonic()
    found = driver_of(tmp_path, 1, "import os; os.kill(os.getppid(), 9)").drive()
    [history] = found.values()
    assert history.result is not None
    assert history.result.ended is Ended.FAILED
    assert history.result.reason.startswith("lost 3 times: its job ")
    assert time.monotonic() - begin_s < 30


def test_a_wrong_partition_is_one_line_at_once(cluster: SlurmCluster, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^Slurm: .*Invalid partition name"):
        driver_of(tmp_path, 2, arguments=["--partition=nowhere"]).drive()


def test_a_wrong_partition_of_one_cell_is_named_and_keeps_the_others(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    driver = driver_of(tmp_path, 4)
    right, wrong = driver.command, driver.runs[2]
    driver.command = lambda run: (
        replace(right(run), slurm=("--partition=nowhere",)) if run == wrong else right(run)
    )
    with pytest.raises(ConfigurationError) as raised:
        driver.drive()
    assert str(raised.value) == (
        "Slurm: Batch job submission failed: Invalid partition name specified "
        f"(run {wrong.key}, with --partition=nowhere)"
    )

    found = driver_of(tmp_path, 4).drive()

    assert [each.result.ended for each in found.values() if each.result] == [Ended.COMPLETE] * 4
    assert {len(path.read_text()) for path in tmp_path.glob("*.note")} == {1}


SWEEP = """\
name: sweep
command: predict dataset
parameters:
  model_name: DigitsCNN
  framework_name: ONNXRuntime
  num_file_parts: 4
  cell.slurm: ["--cpus-per-task=${threads}"]
variables:
  threads: [1, 2]
include:
  - {threads: 1, cell.slurm: [--partition=gpu, "--gres=gpu:1"]}
slurm:
  cluster: here
  exclusive: false
  setup: ['echo "$SLURM_JOB_PARTITION $OMP_NUM_THREADS $GREETING ${CUDA_VISIBLE_DEVICES:--}" > told.txt']
"""
CLUSTERS = f"""\
clusters:
  here: {{time: "5", cpus_per_task: 1, virtualenv: {sys.prefix}, environment: {{GREETING: hello}}}}
"""


def test_cpus_and_a_gpu_in_one_plan_by_the_command_line(
    cluster: SlurmCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "config.yaml").write_text(CLUSTERS)
    (tmp_path / "sweep.yaml").write_text(SWEEP)

    code = agent([f"--config={tmp_path / 'config.yaml'}", "plan", "run", str(tmp_path / "sweep.yaml")])

    stderr = capfd.readouterr().err
    assert code == 0, stderr
    assert stderr.splitlines()[-1] == "runs        3: 3 complete"
    told = sorted(path.read_text().split() for path in tmp_path.glob("data/plans/sweep/runs/*/told.txt"))
    assert told == [["cpu", "1", "hello", "-"], ["cpu", "2", "hello", "-"], ["gpu", "1", "hello", "0"]]


DOCKER = f"""\
#!{sys.executable}
import os, subprocess, sys
words = sys.argv[1:]
if words[0] == "run":
    start = words.index("--entrypoint")
    program, image, *arguments = words[start + 1 :]
    environment = dict(PYTHONPATH=os.environ["PYTHONPATH"])
    for before, word in zip(words[:start], words[1:start]):
        if before == "--env" or word.startswith("--env="):
            name, equals, value = word.removeprefix("--env=").partition("=")
            if equals or name in os.environ:
                environment[name] = value if equals else os.environ[name]
    main = ["-c", {MAIN!r}] if program == "agent" else []
    sys.exit(subprocess.call([sys.executable, *main, *arguments], env=environment))
"""
RANKS = """\
name: ranks
command: bench training
parameters:
  model: deep_mnist
  framework_name: PyTorch
  num_batches: 2
  batch_size: 4
  cell.container: ours:1
  cell.nodes: 2
slurm: {exclusive: false}
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_cell_of_two_nodes_trains_as_two_ranks_each_in_a_container(
    cluster: SlurmCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A docker that passes on only the variables it is told to, as a real one does."""
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "ranks.yaml").write_text(RANKS)

    assert agent(["plan", "run", str(tmp_path / "ranks.yaml")]) == 0, capfd.readouterr().err

    capfd.readouterr()
    agent(["info", "evaluation", "training", "-f", "csv", "--columns=ranks,measured_steps"])
    assert capfd.readouterr().out.splitlines() == ["ranks,measured_steps", "2,2"]
    assert {path.stem for path in tmp_path.glob("data/plans/machines/*")} == {"c1", "c2"}


def test_more_nodes_than_there_are_is_one_error(
    cluster: SlurmCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ranks.yaml").write_text(RANKS.replace("cell.container: ours:1", "cell.tasks_per_node: 2"))
    assert agent(["plan", "check", str(tmp_path / "ranks.yaml"), "-P", "cell.nodes=3"]) == 2
    assert capfd.readouterr().err.splitlines() == [
        "Slurm: allocation failure: Requested node configuration is not available, with --nodes=3 "
        "--ntasks-per-node=2 (1 of 1 cells)"
    ]
