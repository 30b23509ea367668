"""The options of ``agent bench``, with the spelling of DLBS's benchmarks."""

from __future__ import annotations

import json
from typing import Any

import click

from inferometer.client.cli.command import (
    COUNT,
    NOT_NEGATIVE,
    SEED,
    WEIGHTS,
    WHOLE_NUMBER,
    allocator_option,
    boolean,
    database_options,
    option,
    options,
)
from inferometer.client.cli.paths import FILE, InputPath
from inferometer.client.cli.system_options import repeat_option, tracer_options
from inferometer.evaluators.jobs.defaults import (
    BENCH_BATCH_SIZE,
    BENCH_BATCHES,
    BENCH_PREFETCH,
    BENCH_WORKERS,
    DIST_BACKENDS,
    KV_STORES,
)

SYNTHETIC = (
    "synthetic",
    *(f"synthetic/{place}" for place in ("host", "device", "pinned", "pageable", "gpu")),
)
_LAYOUTS = click.Choice(["NCHW", "NHWC"], case_sensitive=False)


class JsonObject(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """A JSON object; an empty text is an empty object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Parses the text, and returns the object."""
        if isinstance(value, dict):
            return value
        try:
            found = json.loads(value.strip() or "{}")
        except (ValueError, RecursionError) as error:
            self.fail(f"{value} is no JSON: {error}", param, ctx)
        if not isinstance(found, dict):
            self.fail(f'{value} is no JSON object, such as {{"num_classes": 1000}}', param, ctx)
        return found


class GpuList(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """GPU indices, separated by commas or colons; an empty text selects the CPU."""

    name = "gpus"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Parses the text, and returns the indices."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).replace(":", ",").split(",") if part.strip()]
        if not all(part.isascii() and part.isdecimal() for part in parts):
            self.fail(
                f"{value} is no list of GPUs; write indices with commas between, such as 0,1", param, ctx
            )
        if len(set(parts)) != len(parts):
            self.fail(f"{value} names a GPU twice", param, ctx)
        return tuple(map(int, parts))


model_options = options(
    database_options,
    option(
        "--model",
        "--model_name",
        "model",
        required=True,
        metavar="NAME",
        help="Model: an id of DLBS, such as alexnet, resnet50 or deep_mnist, which names an architecture; or "
        "the name of a manifest.",
    ),
    option("--model_version", metavar="VERSION", help="Version or constraint.  [default: the id's]"),
    option(
        "--framework_name",
        envvar="AGENT_FRAMEWORK",
        show_envvar=True,
        metavar="NAME",
        help="Framework.  [default: MXNet with --kv_store, else the first installed one that has the model]",
    ),
    option(
        "--batch_size",
        type=COUNT,
        default=BENCH_BATCH_SIZE,
        metavar="N",
        help="Samples per batch and device.",
    ),
    option("--num_batches", type=COUNT, metavar="N", help=f"Measured batches.  [default: {BENCH_BATCHES}]"),
    option(
        "--num_warmup_batches", type=WHOLE_NUMBER, default=1, metavar="N", help="Batches before, unmeasured."
    ),
    option(
        "--device",
        type=click.Choice(["cpu", "gpu"], case_sensitive=False),
        help="Device.  [default: gpu with --num_gpus or --gpus, else cpu]",
    ),
    option(
        "--num_gpus", type=WHOLE_NUMBER, metavar="N", help="Number of GPUs, of those in CUDA_VISIBLE_DEVICES."
    ),
    option(
        "--gpus", type=GpuList(), metavar="LIST", help="The GPUs by index, such as 0,1; empty for the CPU."
    ),
    option(
        "--dtype",
        type=click.Choice(["float", "float32", "float16", "bfloat16"], case_sensitive=False),
        default="float32",
        help="Precision; float is float32. A GPU has float16; training scales its loss.",
    ),
    boolean(
        "--cudnn_benchmark",
        "--cudnn_autotune",
        "cudnn_benchmark",
        default=True,
        help="Let cuDNN time its algorithms and take the fastest; on a CPU it changes nothing.",
    ),
    boolean("--cudnn_fastest", help="A switch of Lua Torch, which --cudnn_benchmark includes."),
    allocator_option(),
    option("--weights", type=WEIGHTS, default="random", help="Weights to begin with."),
    option(
        "--seed",
        type=SEED,
        default=0,
        metavar="N",
        help="Seed of weights, of synthetic data and of the order.",
    ),
    option("--threads", type=COUNT, metavar="N", help="CPU threads per operator and process."),
    option(
        "--model_opts", type=JsonObject(), default="{}", metavar="JSON", help="Options of the model, as JSON."
    ),
    option("--input_layout", type=_LAYOUTS, default="NCHW", help="Layout of the data; NCHW only."),
    option("--model_layout", type=_LAYOUTS, default="NCHW", help="Layout of the model; NCHW only."),
    boolean("--nvidia_layers", help="Layers of NVIDIA's MXNet, which this one has not."),
    option(
        "--workspace",
        type=WHOLE_NUMBER,
        metavar="MB",
        help="Workspace of convolutions, which cuDNN chooses here.",
    ),
)
"""Adds the options of the model and its device."""

data_options = options(
    option(
        "--data_dir",
        type=InputPath(),
        metavar="PATH",
        help="Dataset: a folder or a file. If empty, the data is synthetic.",
    ),
    option("--dataset_name", metavar="NAME", help="Dataset with a manifest, instead of --data_dir."),
    option(
        "--data_backend",
        metavar="NAME",
        help="Format of --data_dir: recordio, caffe_lmdb, image_folder and others.  [default: found out]",
    ),
    option(
        "--data",
        type=click.Choice(SYNTHETIC, case_sensitive=False),
        default="synthetic",
        help="Where synthetic data is: a batch on the device stays there, and is not copied in each step.",
    ),
    boolean("--data_shuffle", help="Draw the order anew for each epoch."),
    option(
        "--num_loader_threads",
        "--num_workers",
        "--preprocess_threads",
        "num_workers",
        type=WHOLE_NUMBER,
        default=BENCH_WORKERS,
        metavar="N",
        help="Workers that load the dataset; 0 loads in the thread of the steps.",
    ),
    option(
        "--loader",
        type=click.Choice(["threads", "processes"], case_sensitive=False),
        default="threads",
        help="Kind of the workers.",
    ),
    option(
        "--prefetch",
        "--prefetch_buffer",
        "prefetch",
        type=WHOLE_NUMBER,
        default=BENCH_PREFETCH,
        metavar="N",
        help="Batches to load ahead.",
    ),
    boolean("--drop_cache", help="Drop the dataset from the page cache first."),
    boolean("--use_dali", help="NVIDIA's DALI, which is not supported."),
    boolean("--fail_on_error", help="Stop at the first input that fails."),
)
"""Adds the options of the data."""

training_options = options(
    option("--num_epochs", type=COUNT, metavar="N", help="Passes over the data, instead of --num_batches."),
    option(
        "--optimizer",
        type=click.Choice(["sgd", "nag", "adam", "adamw", "rmsprop"], case_sensitive=False),
        default="sgd",
        help="Optimizer.",
    ),
    option(
        "--lr", "--learning_rate", "lr", type=NOT_NEGATIVE, default=0.01, metavar="X", help="Learning rate."
    ),
    option(
        "--momentum", type=NOT_NEGATIVE, default=0.9, metavar="X", help="Momentum of SGD, NAG and RMSProp."
    ),
    option("--weight_decay", type=NOT_NEGATIVE, default=1e-4, metavar="X", help="L2 penalty."),
    option(
        "--parts_every",
        type=WHOLE_NUMBER,
        default=10,
        metavar="N",
        help="Time forward, backward, communication and update in every Nth step; 0 for none.",
    ),
    option("--validation_dataset", metavar="NAME", help="Dataset for top-1 and top-5 of the trained model."),
    option("--save_weights", type=FILE, metavar="FILE", help="New file for the trained weights."),
    option("--api", type=click.Choice(["gluon", "module"], case_sensitive=False), help="API of MXNet."),
    option(
        "--kv_store",
        type=click.Choice(KV_STORES, case_sensitive=False),
        help="How MXNet adds gradients up.  [default: device for several GPUs, dist_sync for several ranks]",
    ),
    option("--kv_num_workers", type=COUNT, metavar="N", help="Another name of --num_ranks."),
    option(
        "--kv_num_servers", type=COUNT, metavar="N", help="Servers of a kvstore that is dist_….  [default: 1]"
    ),
    option(
        "--dist_backend",
        type=click.Choice(DIST_BACKENDS, case_sensitive=False),
        help="How PyTorch adds gradients up over ranks.  [default: gloo on CPUs, nccl on GPUs]",
    ),
    option(
        "--num_ranks",
        type=COUNT,
        metavar="N",
        help="Processes that train together.  [default: those of torchrun or srun; in PyTorch one per GPU]",
    ),
    option(
        "--rank", type=WHOLE_NUMBER, metavar="N", help="Number of this process among those of several hosts."
    ),
    option("--rank_address", default="", metavar="HOST:PORT", help="Where the ranks of several hosts meet."),
    option(
        "--local_rank", type=WHOLE_NUMBER, default=0, metavar="N", help="Number of this process on its host."
    ),
)
"""Adds the options of training."""

result_options = options(
    repeat_option("each in fresh processes, as one group; its last line is the interval over the processes."),
    option(
        "--output",
        type=click.Choice(["text", "dlbs"], case_sensitive=False),
        default="text",
        help="dlbs also prints the results as __key__=JSON, which DLBS's log parser reads.",
    ),
    option(
        "--trace_level",
        metavar="LEVEL",
        help="Trace level, as of agent predict dataset.  [default: APPLICATION_TRACE]",
    ),
    tracer_options,
    boolean("--publish", default=True, help="Publish the evaluation to the database."),
    boolean(
        "--require_stable",
        help="Exit with 9 if the conditions were not stable; it is published all the same.",
    ),
)
"""Adds the options of what is printed and kept."""
