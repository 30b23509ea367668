"""The examples of job scripts.

The examples are those of the MXNet page of the Digital Research Alliance of Canada: a convolution, and LeNet
on CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferometer.manifests.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Example:
    """A command line.

    Attributes:
        words: Its words after ``agent``.
        gpu: The option with which it uses the GPU.
        frameworks: The frameworks that can run it.
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
"""The options of examples that end a run, by those that take their place."""


def example_words(name: str, framework: str, *, gpu: bool, more: Sequence[str]) -> list[str]:
    """Returns the words after ``agent`` of an example.

    Args:
        name: The example.
        framework: The framework that runs it.
        gpu: Whether it runs on a GPU.
        more: Further options, as ``--name=value``; they replace those of the example that have their name, or
            for ``--input`` and ``--param`` the name of what they set.

    Raises:
        ConfigurationError: The framework cannot run it, or a word is no such option.
    """
    example = EXAMPLES[name]
    if framework not in example.frameworks:
        known = " or ".join(example.frameworks)
        raise ConfigurationError(f"the example {name} does not run in {framework}; give {known}")
    words = [*example.words, f"--framework_name={framework}", *([example.gpu] if gpu else [])]
    for word in more:
        if not word.startswith("--"):
            raise ConfigurationError(
                f'"{word}" is no option of the example {name}; write options as --name=value'
            )
        replaced = {_key(word), _INSTEAD.get(_key(word))}
        words = [each for each in words if _key(each) not in replaced]
    return [*words, *more]


def _key(word: str) -> str:
    """Returns the name of an option; of ``--input=data=1,2`` it is ``--input=data``."""
    return (
        word.rpartition("=")[0] or word if word.startswith(("--input", "--param")) else word.partition("=")[0]
    )
