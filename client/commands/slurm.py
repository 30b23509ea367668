"""``agent slurm``: job scripts for clusters that run Slurm, and example jobs.

The examples come from the MXNet page of the Digital Research Alliance of Canada: a convolution, and
LeNet on CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferometer.client.cli.command import COUNT, FILE, Command, Group, boolean, current_invocation, option
from inferometer.manifests.errors import ConfigurationError

if TYPE_CHECKING:
    from inferometer.client.api.clusters import Job


@dataclass(frozen=True, slots=True)
class Example:
    """An example command line.

    ``words`` follow ``agent``; ``gpu`` is the option that makes the example use the GPU.
    """

    words: tuple[str, ...]
    gpu: str
    frameworks: tuple[str, ...]


EXAMPLES = {
    "convolution": Example(
        (
            *("op", "run", "conv2d", "--input=data=32,32,256,256", "--param=channels=32"),
            *("--param=kernel=3,3", "--param=pad=1,1", "--param=bias=false", "--time_budget=10"),
        ),
        "--gpu",
        ("MXNet", "PyTorch", "ONNXRuntime"),
    ),
    "cifar10": Example(
        (
            *("bench", "training", "--model=cifar10_lenet", "--batch_size=512", "--num_epochs=1"),
            *("--optimizer=sgd", "--lr=0.1", "--momentum=0", "--weight_decay=0", "--num_workers=0"),
        ),
        "--device=gpu",
        ("MXNet", "PyTorch"),
    ),
}
"""The examples by name. An epoch of synthetic data is 100 batches."""
_INSTEAD = {"--num_batches": "--num_epochs", "--runs": "--time_budget"}
"""The options that limit a run, each with the option of an example that it replaces."""


def example_words(name: str, framework: str, *, gpu: bool, more: Sequence[str]) -> list[str]:
    """Returns the words that follow ``agent`` in the command line of an example.

    Further options, ``more``, are written as ``--name=value``. They replace the example's options with the
    same name or, for ``--input`` and ``--param``, those that set the same input or parameter.

    Raises:
        ConfigurationError: The framework cannot run the example, or a word is not an option.
    """
    example = EXAMPLES[name]
    if framework not in example.frameworks:
        known = " or ".join(example.frameworks)
        raise ConfigurationError(f"the example {name} does not run in {framework}; give {known}")
    words = [*example.words, f"--framework_name={framework}", *([example.gpu] if gpu else [])]
    for word in more:
        if not word.startswith("--"):
            raise ConfigurationError(
                f'"{word}" is not an option of the example {name}; write options as --name=value'
            )
        replaced = {_key(word), _INSTEAD.get(_key(word))}
        words = [each for each in words if _key(each) not in replaced]
    return [*words, *more]


def _key(word: str) -> str:
    """Returns the name of an option; the name of ``--input=data=1,2`` is ``--input=data``."""
    return (
        word.rpartition("=")[0] or word if word.startswith(("--input", "--param")) else word.partition("=")[0]
    )


_EXTRAS = ("MXNet", "PyTorch", "ONNXRuntime")
"""The frameworks for which the package has an extra, named like the framework in lower case."""
_TIME, _MEMORY, _CPUS = "1:00:00", "8G", 2
_SEVERAL_TASKS_OUTPUT = "%N-%j.out"
_GPU_OPTIONS = ("--gpu", "--use_gpu", "--device", "--num_gpus", "--agent")


@click.group(cls=Group)
def slurm() -> None:
    """Write job scripts for clusters that run Slurm.

    \b
      agent slurm script --account=def-someprof --example=convolution -o convolution.sh
      agent slurm script --cluster=narval --gpu --example=cifar10 -o cifar10.sh
      agent slurm script --cluster=narval -- predict dataset --model_name=DigitsCNN
    """  # noqa: D301 - the backspace tells click to leave the lines as they are


@slurm.command(cls=Command)
@click.argument("command", metavar="[-- COMMAND…]", nargs=-1, type=click.UNPROCESSED)
@option("--cluster", metavar="NAME", help="Profile of the configuration file, whose values are defaults.")
@option("--example", type=click.Choice(list(EXAMPLES)), help="Run this example; COMMAND holds its options.")
@option(
    "--framework_name",
    type=click.Choice(_EXTRAS, case_sensitive=False),
    default="MXNet",
    help="Framework that an example runs in, and that the job installs.",
)
@option("--job_name", metavar="NAME", help="Name of the job.  [default: the example's, or inferometer]")
@option("--account", metavar="NAME", help="Accounting group.")
@option("--partition", metavar="NAME", help="Partition.")
@option("--time", metavar="TIME", help=f"Longest time of the job.  [default: {_TIME}]")
@option("--mem", metavar="SIZE", help=f"Memory on each node.  [default: {_MEMORY}]")
@option(
    "--cpus_per_task",
    type=COUNT,
    metavar="N",
    help=f"Cores of a task, and threads of its operators.  [default: {_CPUS}]",
)
@boolean("--gpu", help="Request one GPU for each task of a node; an example runs on it.")
@option("--nodes", type=COUNT, metavar="N", help="Nodes; the tasks on them train as ranks.")
@option("--tasks_per_node", type=COUNT, metavar="N", help="Tasks on each node.")
@option(
    "--output",
    metavar="PATTERN",
    help="File on the cluster for the output of the job.  [default: slurm-%j.out; with --nodes or "
    f"--tasks_per_node {_SEVERAL_TASKS_OUTPUT}]",
)
@option("--module", "modules", multiple=True, metavar="NAME", help="Module to load; repeat it for several.")
@option("--virtualenv", type=FILE, metavar="DIR", help="Existing virtual environment on the cluster.")
@option(
    "--wheels",
    type=FILE,
    metavar="DIR",
    help="Folder on the cluster with the wheels of a new virtual environment.  [default: wheels]",
)
@option(
    "--package",
    "packages",
    multiple=True,
    metavar="NAME",
    help="Package to install from them; repeat it for several.  [default: inferometer with the framework]",
)
@option("-o", "--output_file", type=FILE, metavar="FILE", help="Write the script to this file.")
@boolean("--overwrite", help="Replace the file if it exists.")
def script(output_file: Path | None, overwrite: bool, **given: Any) -> None:
    """Write a job script that runs COMMAND, which is any command line of agent, or an example.

    The example convolution runs 32 filters of 3 x 3 on data of 32 x 32 x 256 x 256. The example cifar10
    trains LeNet with batches of 512 on synthetic data, or on CIFAR-10 with -- --data_dir=DIR. Submit the
    script with sbatch.
    """
    from inferometer.client.api.clusters import script_of
    from inferometer.evaluators.reports.writer import OutputFile

    if overwrite and output_file is None:
        raise ConfigurationError("--overwrite replaces a file; name it with --output_file")
    text = script_of(_job(**given))
    if output_file is None:
        click.echo(text, nl=False)
        return
    OutputFile(output_file, appendable=False).write(text, overwrite=overwrite)


def _job(
    command: Sequence[str],
    cluster: str | None,
    example: str | None,
    framework_name: str,
    job_name: str | None,
    mem: str | None,
    **given: Any,
) -> Job:
    from inferometer.client.api import clusters

    profile = clusters.ClusterProfile()
    if cluster is not None:
        profile = clusters.profile_of(cluster, current_invocation().configuration.clusters)
    time = given["time"]
    if time is not None and not clusters.TIME.fullmatch(time):
        raise ConfigurationError(f'--time "{time}" is not a time; give {clusters.TIME_HELP}')
    if mem is not None and not clusters.MEMORY.fullmatch(mem):
        raise ConfigurationError(f'--mem "{mem}" is not a size; give {clusters.MEMORY_HELP}')
    words = _command(command, example, framework_name, gpu=given["gpu"])
    names = ("account", "partition", "time", "cpus_per_task", "modules", "wheels", "packages")
    options = {**{name: given[name] for name in names}, "memory": mem}
    installs = given["wheels"] or given["packages"]
    if given["virtualenv"] and installs:
        raise ConfigurationError("--virtualenv is installed already; leave it out, or --wheels and --package")
    settings = {
        "time": _TIME,
        "memory": _MEMORY,
        "cpus_per_task": _CPUS,
        "wheels": Path("wheels"),
        "packages": (f"inferometer[{framework_name.lower()}]",),
        **profile.model_dump(exclude_defaults=True),
        **{name: value for name, value in options.items() if value not in (None, ())},
        "virtualenv": given["virtualenv"] or (None if installs else profile.virtualenv),
    }
    several_tasks = given["nodes"] or given["tasks_per_node"]
    output = _SEVERAL_TASKS_OUTPUT if given["output"] is None and several_tasks else given["output"]
    job = clusters.Job(
        name=job_name or example or "inferometer",
        command=words,
        settings=clusters.ClusterProfile.model_construct(**settings),
        nodes=given["nodes"],
        tasks_per_node=given["tasks_per_node"],
        gpu=given["gpu"],
        output=output,
    )
    _note(job.command, tasks=job.tasks, gpu=job.gpu)
    return job


def _command(command: Sequence[str], example: str | None, framework: str, *, gpu: bool) -> list[str]:
    from inferometer.client.cli.main import parsed_command

    if example is not None:
        words = example_words(example, framework, gpu=gpu, more=command)
    else:
        words = list(command[command[:1] == ("agent",) :])
        if not words:
            raise ConfigurationError(
                f"no command is named; put one after --, or name an example: --example={'|'.join(EXAMPLES)}"
            )
    parsed_command(words)  # a job does not wait in the queue in order to fail
    return words


def _note(command: Sequence[str], *, tasks: int, gpu: bool) -> None:
    """Reports on stderr any requested resources that the job would not use."""
    if tasks > 1 and command[0] != "bench":
        what = f"each of the {tasks} tasks runs all of agent {command[0]}"
        click.echo(f"note: {what}; only bench training shares the work", err=True)
    if gpu and not any(word.startswith(_GPU_OPTIONS) for word in command):
        click.echo(
            f"note: the job asks for a GPU that agent {command[0]} does not use; add --gpu to it", err=True
        )
