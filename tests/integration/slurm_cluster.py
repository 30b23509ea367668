"""A real Slurm on this host, without systemd, for as long as a test needs it: three nodes, one with GPUs.

The nodes share the host's cores, so that what they exclude from each other is a matter of the queue alone.
"""

from __future__ import annotations

import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
NODES = ("c1", "c2", "g1")
"""Two nodes of the partition cpu, which is the default, and the one of the partition gpu."""
_STATES = ["idle"] * len(NODES)
_PORTS = range(30_000, 32_000)
"""Linux gives none of them to programs that ask for any free port, and no rank uses them."""
_DEVICES = "/dev/null,/dev/zero"
"""Slurm takes any devices for GPUs; the place of one here is its index."""
_SIZE = "CPUs=2 RealMemory=16384 State=UNKNOWN"
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
CredType=cred/munge
# a job that is requeued waits for cred_expire
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
# linuxproc loses the processes of a job whose shell ends first
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=256
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.txt
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,sched_interval=2,bf_interval=2
ReturnToService=2
JobRequeue=1
# a lost node is noticed after 10 to 15 s
SlurmdTimeout=10
MessageTimeout=3
TCPTimeout=1
KillWait=2
# scontrol knows jobs that have ended for an hour
MinJobAge=3600
NodeName=c1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} {size}
NodeName=c2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} {size}
NodeName=g1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} Gres=gpu:2 {size}
PartitionName=cpu Nodes=c1,c2 Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=g1 MaxTime=INFINITE State=UP
"""


def installed() -> bool:
    """Whether all programs of Slurm are on the path."""
    return all(shutil.which(program) for program in PROGRAMS)


@contextmanager
def running_cluster() -> Iterator[SlurmCluster]:
    """A cluster that has started, and is stopped in the end."""
    # the folder's path must be short, because sockets are in it
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        cluster = SlurmCluster(Path(folder))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


class SlurmCluster:
    """The daemons of a cluster.

    Args:
        folder: An empty folder, whose path has at most 75 characters.

    Attributes:
        environment: The environment of commands such as ``sbatch``.
    """

    def __init__(self, folder: Path) -> None:
        outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        self.environment = {**outside, "SLURM_CONF": str(folder / "slurm.conf")}
        self._folder = folder

    def start(self) -> None:
        """Starts the daemons, and waits until the nodes are idle."""
        folder = self._folder
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        host = socket.gethostname().partition(".")[0]
        ports = _free_ports(1 + len(NODES))
        text = _CONFIGURATION.format(
            folder=folder, host=host, user=getpass.getuser(), ports=ports, size=_SIZE
        )
        (folder / "slurm.conf").write_text(text, encoding="utf-8")
        (folder / "gres.conf").write_text(f"NodeName=g1 Name=gpu File={_DEVICES}\n", encoding="utf-8")
        files = {"socket": "munge.sock", "key-file": "munge.key", "pid-file": "munged.pid"}
        files |= {"log-file": "munged.log", "seed-file": "munge.seed"}
        self.run("munged", "--force", *(f"--{key}={folder / name}" for key, name in files.items()))
        wait_for((folder / "munge.sock").exists)
        self.run("slurmctld")
        for node in NODES:
            self.run("slurmd", "-N", node)
        wait_for(lambda: self.run("sinfo", "-h", "-N", "-o", "%T").split() == _STATES)

    def stop(self) -> None:
        """Cancels the jobs, and ends the daemons."""
        if _pid_in(self._folder / "slurmctld.pid") is not None:
            with suppress(subprocess.SubprocessError):
                for job in self.run("squeue", "-h", "-o", "%A").split():
                    self.run("scancel", job)
                wait_for(lambda: not self.run("squeue", "-h", "-o", "%A"))
        for name in (*(f"slurmd.{node}" for node in NODES), "slurmctld", "munged"):
            self._end(name, signal.SIGTERM)

    def node_down(self, node: str, *, noticed: bool = True) -> None:
        """Kills a node with what runs on it.

        Args:
            node: Its name.
            noticed: Whether the controller is told; else it finds out after its timeouts.
        """
        self._end(f"slurmd.{node}", signal.SIGKILL)
        for step in list(self._steps(node)):
            # the step first: if it saw its job end, it would tell the controller that the job has failed
            for process in (step, *step.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        if noticed:
            self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")

    def node_up(self, node: str) -> None:
        """Starts a node again, and waits until jobs can run on it."""
        self.run("slurmd", "-N", node)
        wait_for(lambda: self.state_of(node) in {"idle", "mixed", "allocated"})

    def state_of(self, node: str) -> str:
        """Returns the state of a node, such as ``idle`` or ``down``."""
        return self.run("sinfo", "-h", "-N", "-n", node, "-o", "%T").strip()

    def finished(self, job: str) -> dict[str, str]:
        """Waits until a job has ended, and returns what ``scontrol`` shows of it, such as JobState."""
        shown: dict[str, str] = {}

        def has_ended() -> bool:
            line = self.run("scontrol", "-o", "show", "job", job)
            shown.update(part.partition("=")[::2] for part in line.split())
            return shown["JobState"] not in {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"}

        wait_for(has_ended, seconds=90.0)
        return shown

    def run(self, *command: str) -> str:
        """Runs a command of Slurm, and returns what it prints on stdout."""
        done = subprocess.run(
            command,
            env=self.environment,
            check=True,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=60,
        )
        return done.stdout

    def _end(self, name: str, kind: signal.Signals) -> None:
        pid = _pid_in(self._folder / f"{name}.pid")
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, kind)
            wait_for(lambda: _has_ended(pid))
            (self._folder / f"{name}.pid").unlink(missing_ok=True)

    def _steps(self, node: str) -> Iterator[psutil.Process]:
        """The processes that hold the log of a node and are not its daemon."""
        log = str(self._folder / f"slurmd.{node}.log")
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.name().startswith("slurmstepd") and log in {f.path for f in process.open_files()}:
                    yield process


def _pid_in(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(path.read_text(encoding="utf-8"))
    return None


def _has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie that nobody has waited for, which has no command line."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


def _free_ports(count: int) -> list[int]:
    found: list[int] = []
    with ExitStack() as held:
        for port in random.sample(_PORTS, len(_PORTS)):
            with suppress(OSError):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                break
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s, "the deadline has passed"
        time.sleep(0.02)
