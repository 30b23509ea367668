"""Options shared by several commands: the model, where it runs, its inputs, and where evaluations go.

Options that requests declare are built from the declarations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import click

from inferometer.client.cli.command import (
    COUNT,
    FILE,
    INPUT,
    POSITIVE,
    PRECISION,
    SEED,
    SHAPE,
    WEIGHTS,
    WHOLE_NUMBER,
    FiniteFloatRange,
    allocator_option,
    boolean,
    database_options,
    option,
    options,
    tls_options,
)
from inferometer.evaluators.jobs.options import MODEL, OPEN_TIMEOUT_S, Option, SharedMemoryUse, options_of

publication_options = options(
    boolean("--publish", default=True, help="Publish the evaluation to the database."),
    boolean(
        "--require_stable",
        help="Exit with 9 if the conditions of an evaluation were not stable; it is published all the same.",
    ),
)
"""Adds ``publish`` and ``require_stable``."""

system_options = options(
    database_options,
    option("--model_name", default=MODEL, metavar="NAME", help="Model."),
    option(
        "--model_version",
        metavar="VERSION",
        help="Version or constraint.  [default: the highest that has the weights]",
    ),
    option(
        "--model_path",
        type=INPUT,
        metavar="FILE",
        help="Model in a file, without a manifest: .onnx, .pt2 (torch.export), .pt (TorchScript), or MXNet's "
        "symbol with its parameters beside it. It runs in this process.",
    ),
    option(
        "--input_shape",
        type=SHAPE,
        metavar="SIZES",
        help="Input shape of --model_path without the batch, such as 3,224,224.  [default: the file's]",
    ),
    option(
        "--framework_name",
        envvar="AGENT_FRAMEWORK",
        show_envvar=True,
        metavar="NAME",
        help="Framework.  [default: the first installed one that has the model]",
    ),
    option(
        "--agent",
        "agent_address",
        envvar="AGENT_ADDRESS",
        show_envvar=True,
        metavar="AGENT",
        help="Run on this served agent: HOST:PORT, or any, or conditions such as "
        "gpu=H100,framework=PyTorch (also model, host, arch, cpu). Several addresses with commas share a "
        "dataset. kserve://HOST:PORT[/MODEL] is any server of the Open Inference Protocol, kserve+http:// "
        "one over HTTP.  "
        "[default: in this process]",
    ),
    option(
        "--open_timeout",
        type=POSITIVE,
        default=OPEN_TIMEOUT_S,
        metavar="S",
        help="Timeout of the agent for opening the model, including downloads.",
    ),
    option(
        "--shared_memory",
        type=click.Choice([use.value for use in SharedMemoryUse], case_sensitive=False),
        default=SharedMemoryUse.AUTO.value,
        help="Pass inputs to a KServe server on this host through shared memory: auto where both sides "
        "can, off never; on makes it an error if they cannot.",
    ),
    option(
        "--weights",
        type=WEIGHTS,
        default="pretrained",
        help="Random weights measure speed only; they require a model that is built in code.",
    ),
    option("--seed", type=SEED, default=0, metavar="N", help="Seed of random weights and schedules."),
    boolean("--gpu", "--use_gpu", help="Run on the GPU; an error if there is none."),
    option("--gpu_device_id", type=WHOLE_NUMBER, default=0, metavar="N", help="Index of the GPU."),
    option(
        "--threads",
        type=COUNT,
        metavar="N",
        help="CPU threads per operator.  [default: the agent's number, else OMP_NUM_THREADS, else the cores]",
    ),
    option(
        "--dtype",
        type=PRECISION,
        help="Type of the numbers that a model in code computes with; float is float32.  "
        "[default: the model's own, float32]",
    ),
    boolean(
        "--cudnn_benchmark",
        default=None,
        help="Let cuDNN time its algorithms and take the fastest; no effect on a CPU.  "
        "[default: the framework's]",
    ),
    allocator_option(" An agent has its own."),
    publication_options,
    tls_options,
)
"""Adds the options that choose a model, where it runs and where its evaluation goes."""


def repeat_option(explanation: str) -> Callable[[Any], Any]:
    """Adds the option ``repeat``; its help text contains ``explanation``."""
    return option(
        "--repeat",
        type=click.IntRange(1, 1000),
        default=1,
        metavar="N",
        help=f"Repeat N times, {explanation}",
    )


tracer_options = options(
    option("--tracer_address", metavar="ADDRESS", help="Collector that spans are sent to."),
    option(
        "--trace_url",
        metavar="URL",
        help="Where a person finds traces: the URL of a Jaeger, or one with {trace_id}.  "
        "[default: the collector's host]",
    ),
)
"""Adds ``tracer_address`` and ``trace_url``."""


dataset_options = options(
    boolean(
        "--synthetic",
        help="Predict random tensors instead of a dataset's inputs, for speed only; the default of "
        "--model_path.",
    ),
    option(
        "--sequence_length",
        type=click.IntRange(min=1),
        metavar="N",
        help="Size of dynamic axes in the tensors of --synthetic.  [default: 128; of images, max_dimension "
        "or 224]",
    ),
    option("--dataset_name", metavar="NAME", help="Dataset.  [default: the one that the model names]"),
    option(
        "--dataset_path",
        type=INPUT,
        metavar="PATH",
        help="Dataset: class folders, a zip of them, an .npz, a .rec, a Caffe LMDB, CIFAR-10, MNIST's idx, "
        "COCO's JSON, VOC's folders; "
        "with --dataset_name=ilsvrc2012_validation, the folder with its files.",
    ),
    option(
        "--data_backend",
        metavar="NAME",
        help="Format of --dataset_path: recordio, caffe_lmdb, image_folder, npz, zip, ilsvrc2012_validation, "
        "cifar10, mnist, coco or voc.  [default: found out]",
    ),
    option(
        "--sample_ids",
        metavar="FILE|LIST",
        help="Only the samples with these ids: a list with commas, or a file with one a line.  "
        "[default: all]",
    ),
)
"""Adds the options of datasets, from ``dataset_name`` to ``sample_ids``."""


def request_options(
    request: type[Any], but: Collection[str] = (), only: Collection[str] | None = None
) -> Callable[[Any], Any]:
    """Adds the options that a request declares, in order; their parameters have the library's names.

    Args:
        request: The class of the request.
        but: The names of the options to omit.
        only: Those to add; None adds all.
    """
    every = (each for each in options_of(request) if each.name not in but)
    return options(*(_option(each) for each in every if only is None or each.name in only))


def _option(each: Option) -> Callable[[Any], Any]:
    shown, names = each.declared, (*each.flags, each.argument)
    if each.kind == "bool":
        return boolean(*names, help=shown.help, default=each.default)
    suffix = f"  [default: {shown.default_text}]" if shown.default_text else ""
    default = getattr(each.default, "value", each.default)
    settings: dict[str, Any] = {} if default in (None, "") else {"default": default}
    if shown.made is not None:
        made = shown.made
        settings["callback"] = lambda _context, _parameter, value: None if value is None else made(value)
    return option(*names, type=_type(each), metavar=shown.metavar, help=f"{shown.help}{suffix}", **settings)


def _type(each: Option) -> Any:
    shown, within = each.declared, each.declared.within
    if shown.choices:
        return click.Choice(shown.choices, case_sensitive=not shown.any_case)
    if each.kind == "Path":
        return INPUT if shown.reads else FILE
    if within is None:
        return {"int": click.INT, "float": FiniteFloatRange()}.get(each.kind)
    if each.kind == "int":
        return click.IntRange(math.ceil(within.least), None if within.most is None else int(within.most))
    open_end = within.open and within.most is not None
    return FiniteFloatRange(within.least, within.most, min_open=within.open, max_open=open_end)
