"""The scripts of ``agent slurm script`` on a real Slurm: it accepts them, and they run; else skipped."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from inferometer.client.cli.main import run
from tests.integration.slurm_cluster import SlurmCluster, wait_for

HERE = Path(sys.prefix)
SMALL = ("--mem=512M", "--time=5")
Script = Callable[..., Path]
_PROGRAM = """\
import json, os, signal, sys


def main():
    names = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "GREETING", "SLURM_PROCID", "SLURM_STEP_NODELIST")
    seen = {name: os.environ[name] for name in names if name in os.environ}
    print(json.dumps({"argv": sys.argv[1:], "prefix": sys.prefix, **seen}), flush=True)
    if "--wait" in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: (print("terminated", flush=True), os._exit(0)))
        print("waiting", flush=True)
        while True:
            signal.pause()
"""
"""A program named agent, which says what it is given."""


@pytest.fixture
def write(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Script:
    """Writes a script into the working directory, by the command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def call(*words: str) -> Path:
        path = tmp_path / "job.sh"
        assert run(["slurm", "script", *words[:1], f"-o{path}", "--overwrite", *words[1:]]) == 0, (
            capfd.readouterr()
        )
        return path

    return call


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with the wheel of a package that has a program named agent."""
    folder = tmp_path / "a folder of wheels"
    folder.mkdir()
    info = "shown-1.0.dist-info"
    with zipfile.ZipFile(folder / "shown-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("shown.py", _PROGRAM)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: shown\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\nagent = shown:main\n")
        wheel.writestr(f"{info}/RECORD", "")
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment, as far as a script uses one, with a program named agent."""
    programs = tmp_path / "it's an env" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").write_text('PATH="$(dirname "${BASH_SOURCE[0]}"):$PATH"; export PATH\n')
    (programs / "agent").write_text(f"#!{sys.executable}\n{_PROGRAM}\n\nmain()\n")
    (programs / "agent").chmod(0o755)
    return programs.parent


def submit(cluster: SlurmCluster, script: Path, *options: str) -> str:
    """The number of the job; it ends with the cluster if not before."""
    return cluster.run("sbatch", "--parsable", f"--chdir={script.parent}", *options, str(script)).strip()


def ran(cluster: SlurmCluster, script: Path) -> tuple[dict[str, str], str]:
    """What Slurm shows of a job that has ended, and what the job printed."""
    job = cluster.finished(submit(cluster, script))
    printed = "".join(path.read_text() for path in script.parent.glob(f"*-{job['JobId']}.out"))
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), printed
    return job, printed


@pytest.mark.parametrize(
    "words",
    [
        ("--example=convolution",),
        ("--example=cifar10",),
        ("--example=convolution", "--gpu", "--partition=gpu"),
        ("--example=cifar10", "--gpu", "--partition=gpu", "--framework_name=PyTorch"),
        ("--example=cifar10", "--nodes=2", "--tasks_per_node=2", "--cpus_per_task=1"),
        (
            "--module=python/3.10",
            "--job_name=it's a # job",
            "--",
            "predict",
            "dataset",
            "--model_name=DigitsCNN",
        ),
    ],
)
def test_slurm_accepts_every_script(
    slurm_cluster: SlurmCluster, write: Script, words: tuple[str, ...]
) -> None:
    slurm_cluster.run("sbatch", "--test-only", str(write(*words)))


def test_what_is_quoted_arrives(slurm_cluster: SlurmCluster, write: Script, environment: Path) -> None:
    name, pattern = 'it\'s "a" $HOME `#` \\ job', "my $HOME's-%N-%j.out"
    words = ["predict", "dataset", '--model_name=it\'s $HOME; `false` \\ "#"']
    job, printed = ran(
        slurm_cluster,
        write(
            *(f"--virtualenv={environment}", f"--job_name={name}", f"--output={pattern}"),
            *("--cpus_per_task=2", *SMALL, "--", *words),
        ),
    )

    shown = json.loads(printed)
    assert (shown["argv"], shown["OMP_NUM_THREADS"]) == (words, "2")
    assert len(list(Path(job["WorkDir"]).glob(f"my $HOME's-*-{job['JobId']}.out"))) == 1
    named = slurm_cluster.run("squeue", "-h", "-t", "all", "-j", job["JobId"], "-o", "%j")
    assert named.rstrip("\n") == name


def test_a_new_environment_is_installed_from_the_folder_alone(
    slurm_cluster: SlurmCluster, write: Script, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config" / "inferometer").mkdir(parents=True)
    (tmp_path / "config" / "inferometer" / "config.yaml").write_text(
        "clusters:\n  here:\n    packages: [shown]\n    environment: {GREETING: it's $1}\n"
        f"    wheels: {wheels}\n"
    )
    monkeypatch.setitem(slurm_cluster.environment, "TMPDIR", str(tmp_path))
    cores = ("--cpus_per_task=1", "--tasks_per_node=2")
    _, printed = ran(slurm_cluster, write("--cluster=here", *SMALL, *cores, "--", "op", "list"))
    shown = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]

    assert [each["argv"] for each in shown] == [["op", "list"]] * 2
    assert {Path(each["prefix"]).parent.parent for each in shown} == {tmp_path}
    assert {each["OMP_NUM_THREADS"] for each in shown} == {"1"}
    assert {each["GREETING"] for each in shown} == {"it's $1"}


def test_a_folder_without_the_package_fails_the_job(
    slurm_cluster: SlurmCluster, write: Script, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node").mkdir()
    monkeypatch.setitem(slurm_cluster.environment, "SLURM_TMPDIR", str(tmp_path / "node"))
    job = slurm_cluster.finished(
        submit(slurm_cluster, write(f"--wheels={wheels}", *SMALL, "--", "op", "list"))
    )

    assert job["JobState"] == "FAILED"
    printed = (tmp_path / f"slurm-{job['JobId']}.out").read_text()
    assert "No matching distribution found for inferometer[mxnet]" in printed
    assert (tmp_path / "node" / "env" / "bin" / "pip").exists()


def test_a_job_of_the_gpu_partition_gets_its_device(
    slurm_cluster: SlurmCluster, write: Script, environment: Path
) -> None:
    job, printed = ran(
        slurm_cluster,
        write(f"--virtualenv={environment}", "--gpu", "--partition=gpu", *SMALL, "--example=convolution"),
    )

    assert job["NodeList"] == "g1"
    shown = json.loads(printed)
    assert shown["CUDA_VISIBLE_DEVICES"] == "0"
    assert "--gpu" in shown["argv"]


def test_each_task_on_each_node_is_a_rank(
    slurm_cluster: SlurmCluster, write: Script, environment: Path
) -> None:
    options = ("--nodes=2", "--tasks_per_node=2", "--cpus_per_task=1", *SMALL)
    _, printed = ran(slurm_cluster, write(f"--virtualenv={environment}", *options, "--example=cifar10"))
    shown = [json.loads(line) for line in printed.splitlines()]

    assert sorted(each["SLURM_PROCID"] for each in shown) == ["0", "1", "2", "3"]
    assert {each["SLURM_STEP_NODELIST"] for each in shown} == {"c[1-2]"}
    assert {each["OMP_NUM_THREADS"] for each in shown} == {"1"}


def test_the_program_gets_the_signal_of_a_cancelled_job(
    slurm_cluster: SlurmCluster, write: Script, environment: Path, tmp_path: Path
) -> None:
    script = write(f"--virtualenv={environment}", *SMALL, "--", "op", "list")
    script.write_text(script.read_text().rstrip() + " --wait\n")
    job = submit(slurm_cluster, script)
    wait_for(lambda: "waiting" in _printed(tmp_path / f"slurm-{job}.out"))
    slurm_cluster.run("scancel", job)

    assert slurm_cluster.finished(job)["JobState"] == "CANCELLED"
    assert "terminated" in _printed(tmp_path / f"slurm-{job}.out")


def test_the_convolution_runs_in_this_environment(
    slurm_cluster: SlurmCluster, write: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec("mxnet") is None:
        pytest.skip("MXNet is not installed")
    if not (HERE / "bin" / "activate").exists():
        pytest.skip("this Python runs in no virtual environment")
    monkeypatch.setitem(slurm_cluster.environment, "AGENT_DATA_DIR", str(tmp_path / "data"))
    small = ("--input=data=2,3,8,8", "--runs=3", "--format=json", f"--output={tmp_path / 'rows.json'}")
    ran(slurm_cluster, write(f"--virtualenv={HERE}", *SMALL, "--example=convolution", "--", *small))
    (row,) = json.loads((tmp_path / "rows.json").read_text())

    assert (row["status"], row["threads"]) == ("measured", 2)
    assert row["flops"] == 2 * (2 * 32 * 8 * 8) * (3 * 3 * 3)


def test_a_lost_node_ends_what_runs_on_it_and_comes_back(
    slurm_cluster: SlurmCluster, write: Script, environment: Path, tmp_path: Path
) -> None:
    script = write(f"--virtualenv={environment}", *SMALL, "--", "op", "list")
    script.write_text(script.read_text().rstrip() + " --wait\n")
    job = submit(slurm_cluster, script, "--no-requeue", "--nodelist=c1")
    wait_for(lambda: "waiting" in _printed(tmp_path / f"slurm-{job}.out"))
    slurm_cluster.node_down("c1")

    assert slurm_cluster.state_of("c1") == "down"
    assert slurm_cluster.finished(job)["JobState"] == "NODE_FAIL"
    assert "terminated" not in _printed(tmp_path / f"slurm-{job}.out")
    slurm_cluster.node_up("c1")
    assert slurm_cluster.state_of("c1") == "idle"


def _printed(path: Path) -> str:
    return path.read_text() if path.exists() else ""
