"""A real Slurm on this host with two nodes, for as long as a test needs it."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "scontrol", "sinfo")
NODES = ("c1", "c2")
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
KillWait=2
NodeName=c1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=c2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=c1,c2 Default=YES MaxTime=INFINITE State=UP
"""


def installed() -> bool:
    """Whether all programs of Slurm are on the path."""
    return all(shutil.which(program) for program in PROGRAMS)


class SlurmCluster:
    """The daemons of a cluster; its folder's path must be short, because sockets are in it.

    Attributes:
        environ: The environment of commands such as ``srun``.
    """

    def __init__(self, folder: Path) -> None:
        self.environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._folder = folder

    def start(self) -> None:
        """Starts the daemons, and waits until the nodes are idle."""
        folder = self._folder
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        host = socket.gethostname().partition(".")[0]
        text = _CONFIGURATION.format(folder=folder, host=host, user=getpass.getuser(), ports=_free_ports(3))
        (folder / "slurm.conf").write_text(text, encoding="utf-8")
        files = {"socket": "munge.sock", "key-file": "munge.key", "pid-file": "munged.pid"}
        files |= {"log-file": "munged.log", "seed-file": "munge.seed"}
        self._run(["munged", "--force", *(f"--{key}={folder / name}" for key, name in files.items())])
        _wait_for((folder / "munge.sock").exists)
        self._run(["slurmctld"])
        for node in NODES:
            self._run(["slurmd", "-N", node])
        _wait_for(lambda: self._run(["sinfo", "-h", "-N", "-o", "%T"]).split() == ["idle"] * len(NODES))

    def stop(self) -> None:
        """Ends the daemons."""
        for name in (*(f"slurmd.{node}" for node in NODES), "slurmctld", "munged"):
            with suppress(OSError, ValueError):
                pid = int((self._folder / f"{name}.pid").read_text(encoding="utf-8"))
                os.kill(pid, signal.SIGTERM)
                _wait_for(lambda pid=pid: _has_ended(pid))  # type: ignore[misc]

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            env=self.environ,
            check=True,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=60,
        )
        return done.stdout


def _has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie that nobody has waited for, which has no command line."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s, "the deadline has passed"
        time.sleep(0.02)
