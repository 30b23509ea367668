"""Reads the rank of a process started by torchrun, Slurm or an MXNet tracker from its environment."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from inferometer.agent.hardware.environment import default_threads
from inferometer.agent.training.trainer import Rank
from inferometer.manifests.errors import ConfigurationError

LOOPBACK = "127.0.0.1"
SLURM_PORTS = range(20_000, 30_000)
"""The ports of Slurm's ranks; Linux does not assign them to programs that request any free port."""
_STEP_STRIDE = 1009
_MOST_NUMBER = 2**32
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_NODELIST", "SLURM_JOB_ID")
STEP_VARIABLES = (
    *(*_SLURM, "SLURM_STEP_ID", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK"),
    *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"),
)
"""The variables by which a process in a container knows its place in a step of Slurm."""
_DMLC = ("DMLC_ROLE", "DMLC_NUM_WORKER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")


def rank_of_environment(environ: Mapping[str, str]) -> Rank | None:
    """Returns the rank that a launcher gave this process; None if there is no launcher or only one process.

    torchrun's variables take precedence, as torchrun can also run in a Slurm step; MXNet's trackers come
    second and Slurm third. Only processes that ``srun`` starts are ranks, not the batch script of a job.

    Raises:
        ConfigurationError: Variables are missing, not valid, or contradict each other.
    """
    in_step = "SLURM_STEP_NODELIST" in environ
    if "RANK" in environ or (not in_step and environ.keys() & {"WORLD_SIZE", "LOCAL_RANK"}):
        if "DMLC_ROLE" in environ:
            raise ConfigurationError(
                "RANK and DMLC_ROLE are both set; unset those of the launcher not in use"
            )
        return _of_torchrun(_Variables(environ, "torchrun", _TORCHRUN))
    if environ.keys() & set(_DMLC):
        return _of_dmlc(_Variables(environ, "a tracker of MXNet", _DMLC))
    if in_step:
        return _of_slurm(_Variables(environ, "srun", _SLURM))
    return None


def rank_threads(rank: Rank, environ: Mapping[str, str]) -> int:
    """Returns how many threads an operator of a rank uses if no option specifies their number.

    This is the number of CPUs that ``srun --cpus-per-task`` gives the rank, but no more than it may use; else
    ``OMP_NUM_THREADS``; else an equal share of the cores that this host's ranks may use.
    """
    given = environ.get("SLURM_CPUS_PER_TASK", "")
    if "SLURM_STEP_NODELIST" in environ and given.isdecimal() and int(given):
        return min(int(given), default_threads())
    if environ.get("OMP_NUM_THREADS"):
        return default_threads()
    return max(1, default_threads() // rank.local_count)


def rank_gpu(rank: Rank, environ: Mapping[str, str]) -> int:
    """Returns the index of a rank's GPU: its number on the host, or 0 if the rank sees only one GPU."""
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    return 0 if visible and "," not in visible else rank.local


def expand_hosts(text: str) -> Iterator[str]:
    """Yields the hosts in a Slurm host list in order; ``node[001-003,7]-ib,login`` contains five.

    Raises:
        ConfigurationError: The list is not valid.
    """
    items = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if not items or ",".join(items) != text:
        raise ConfigurationError(
            f"cannot read the list of hosts {text!r}; it must be like node[001-004,007],login"
        )
    for item in items:
        parts = re.split(r"\[([^\[\]]*)\]", item)
        choices = [
            list(_numbers(part, text)) if position % 2 else [part] for position, part in enumerate(parts)
        ]
        for chosen in itertools.product(*choices):
            yield "".join(chosen)


def _numbers(ranges: str, text: str) -> Iterator[str]:
    """Yields the numbers in a list of ranges such as ``001-004,007``, keeping leading zeros."""
    for span in ranges.split(","):
        found = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", span)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if found is None or last < first or last - first >= 2**16:
            raise ConfigurationError(f"cannot read {span!r} in the list of hosts {text!r}")
        for number in range(first, last + 1):
            yield str(number).zfill(len(found[1]))


def _of_torchrun(variables: _Variables) -> Rank | None:
    number, count = variables.member("RANK", "WORLD_SIZE")
    local = variables.number("LOCAL_RANK")
    local_count = variables.number("LOCAL_WORLD_SIZE", local + 1)
    if local > number or not local < local_count <= count:
        raise ConfigurationError(
            f"LOCAL_RANK {local}, RANK {number}, LOCAL_WORLD_SIZE {local_count} and WORLD_SIZE {count} "
            "contradict each other"
        )
    address = variables.address("MASTER_ADDR", "MASTER_PORT")
    return Rank(number, count, local, address, local_count) if count > 1 else None


def _of_dmlc(variables: _Variables) -> Rank:
    role = variables.text("DMLC_ROLE")
    if role != "worker":
        raise ConfigurationError(
            f"DMLC_ROLE is {role}, but only a worker trains; as a {role}, run "
            "python -m inferometer.agent.frameworks.mxnet.kvstore"
        )
    address = variables.address("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
    named = "DMLC_WORKER_ID" if variables.given("DMLC_WORKER_ID") else "DMLC_TASK_ID"
    number, count = variables.member(named, "DMLC_NUM_WORKER")
    return Rank(number, count, address=address, servers=max(1, variables.number("DMLC_NUM_SERVER", 1)))


def _of_slurm(variables: _Variables) -> Rank | None:
    number, count = variables.member("SLURM_PROCID", "SLURM_NTASKS")
    if count == 1:
        return None
    local = variables.number("SLURM_LOCALID")
    local_count = _tasks_here(variables)
    if local > number or not local < local_count <= count:
        raise ConfigurationError(
            f"SLURM_LOCALID {local}, SLURM_PROCID {number}, {local_count} tasks on this host and "
            f"SLURM_NTASKS {count} contradict each other"
        )
    if variables.given("WORLD_SIZE") and variables.number("WORLD_SIZE") != count:
        raise ConfigurationError(f"WORLD_SIZE contradicts SLURM_NTASKS, which is {count}")
    if variables.given("MASTER_ADDR") and variables.given("MASTER_PORT"):
        return Rank(number, count, local, variables.address("MASTER_ADDR", "MASTER_PORT"), local_count)
    step = variables.number("SLURM_STEP_ID", 0)
    place = (variables.number("SLURM_JOB_ID") + _STEP_STRIDE * step) % len(SLURM_PORTS)
    port = variables.port("MASTER_PORT", SLURM_PORTS[place])
    hosts = expand_hosts(variables.text("SLURM_STEP_NODELIST"))
    # ranks that are alone on one host meet on its loopback address, others on that of rank 0
    host = variables.text("MASTER_ADDR", LOOPBACK if local_count == count else next(hosts))
    return Rank(number, count, local, f"{host}:{port}", local_count)


def _tasks_here(variables: _Variables) -> int:
    """Returns the number of tasks on this host, from a list such as ``2(x3),1``; 1 if there is no list."""
    text = variables.text("SLURM_STEP_TASKS_PER_NODE", "1")
    node = variables.number("SLURM_NODEID", 0)
    for item in text.split(","):
        found = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", item)
        if found is None:
            raise ConfigurationError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}; it must be like 2(x3),1")
        node -= int(found[2] or 1)
        if node < 0:
            return int(found[1])
    raise ConfigurationError(f"SLURM_STEP_TASKS_PER_NODE {text!r} does not reach this host's SLURM_NODEID")


class _Variables:
    """The variables of one launcher, which sets all of ``names``."""

    def __init__(self, environ: Mapping[str, str], launcher: str, names: tuple[str, ...]) -> None:
        self._environ = environ
        self._launcher = launcher
        self._names = names

    def given(self, name: str) -> bool:
        return bool(self._environ.get(name))

    def text(self, name: str, default: str | None = None) -> str:
        text = self._environ.get(name) or default
        if text is None:
            found = ", ".join(each for each in self._names if each in self._environ)
            raise ConfigurationError(f"{name} is not set, but {found}; {self._launcher} sets them all")
        return text

    def number(self, name: str, default: int | None = None) -> int:
        text = self.text(name, None if default is None else str(default))
        if not (text.isascii() and text.isdecimal()) or int(text) > _MOST_NUMBER:
            raise ConfigurationError(f"{name} is {text!r}; it must be a whole number, 0 or greater")
        return int(text)

    def port(self, name: str, default: int | None = None) -> int:
        port = self.number(name, default)
        if not 0 < port < 2**16:
            raise ConfigurationError(f"{name} is {port}; a port is 1 to 65535")
        return port

    def member(self, number_name: str, count_name: str) -> tuple[int, int]:
        """Returns the number of a process in a group, and the number of processes in the group."""
        number, count = self.number(number_name), self.number(count_name)
        if number >= count:
            raise ConfigurationError(
                f"{number_name} is {number}, but {count_name} is {count}; numbers begin at 0"
            )
        return number, count

    def address(self, host_name: str, port_name: str) -> str:
        return f"{self.text(host_name)}:{self.port(port_name)}"
