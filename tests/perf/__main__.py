"""Command line of the benchmarks: ``python -m tests.perf``. Each figure is a ratio within one run."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import psutil

from inferometer.agent.hardware.environment import read_environment
from inferometer.agent.inference.registry import Registry
from tests.perf import (
    batching,
    dataset_overhead,
    generation,
    grpc_round_trip,
    hot_path,
    instances,
    issue_rate,
    load_client,
    loading,
    mixes,
    mlserver_doors,
    mlserver_peer,
    open_inference,
    operator_times,
    operator_verdicts,
    page,
    plan_cells,
    rate_search,
    reference,
    resnet50,
    server_statistics,
    shared_memory,
    slurm_submission,
    soak,
    start_up,
    stored_spans,
    tracing,
    training_steps,
    triton_peer,
    tuning,
    workers,
)
from tests.perf.ratios import Row, print_table

_Given = argparse.Namespace
_Tables = Iterator[tuple[str, Sequence[Row]]]
"""Each title with its rows; without rows it is why there are none."""


def _of(title: str, measure: Callable[[], Sequence[Row]], skipped: str = "") -> Callable[[_Given], _Tables]:
    """A section with one table; ``skipped`` is said where it has no rows."""

    def tables(_: _Given) -> _Tables:
        rows = measure()
        yield title if rows else skipped, rows

    return tables


def _dataset(given: _Given) -> _Tables:
    added, overlap = dataset_overhead.measure(given.rounds, given.threads)
    yield f"predict dataset / bare loop, {given.threads} thread(s) on both sides", added
    yield "Preparing while predicting / preparing before predicting (the default)", overlap


def _resnet50(given: _Given) -> _Tables:
    what = f"ResNet50, random weights, batches of {resnet50.BATCH_SIZE}"
    yield f"{what}, each framework's default number of threads", resnet50.measure(given.rounds)


def _tracing(given: _Given) -> _Tables:
    yield "Tracing, ResNet50, random weights, from tensors", tracing.measure(given.rounds)
    yield f"Reading {stored_spans.SPANS:,} stored spans", stored_spans.measure()


def _training(given: _Given) -> _Tables:
    what = f"Steps of training / bare loop, {given.threads} thread(s) on both sides"
    yield what, training_steps.measure(given.rounds, given.threads)


def _loading(given: _Given) -> _Tables:
    what = f"batches of {loading.BATCH_SIZE}, {loading.WORKERS} workers on both sides, samples/s"
    yield f"Loading {loading.IMAGES} JPEGs of 256 × 256, {what}", loading.measure(given.rounds)


def _operators(given: _Given) -> _Tables:
    if operator_times.OPPERF not in os.environ:
        yield "operators: without MXNet; INFEROMETER_OPPERF names the folder of opperf", ()
    what = f"{given.threads} thread(s) on both sides"
    yield f"Single operators, {what}", operator_times.measure(given.rounds, given.threads)


def _operator_verdicts(given: _Given) -> _Tables:
    what = f"{operator_verdicts.COMPARISONS} comparisons of {operator_verdicts.PROCESSES} processes each"
    yield f"agent compare of operators, {what}", operator_verdicts.measure(given.threads)


def _plan_cells(given: _Given) -> _Tables:
    yield "A cell of a plan, DigitsCNN in ONNX Runtime", plan_cells.measure(given.rounds)


def _slurm_jobs(_: _Given) -> _Tables:
    rows = slurm_submission.measure()
    jobs = f"{slurm_submission.JOBS} empty runs on a real Slurm"
    yield jobs if rows else "slurm_jobs: skipped; install slurm-wlm and munge", rows
    if slurm_submission.PYTHON not in os.environ:
        yield f"slurm_jobs: without submitit; {slurm_submission.PYTHON} names a Python with it", ()


SECTIONS: Mapping[str, Callable[[_Given], _Tables]] = {
    "start_up": _of("Start-up, whole processes", start_up.measure),
    "dataset": _dataset,
    "resnet50": _resnet50,
    "reference": _of("ResNet50 in PyTorch beside torch.utils.benchmark, batches of 1", reference.measure),
    "tracing": _tracing,
    "training": _training,
    "grpc": _of("gRPC Predict", grpc_round_trip.measure),
    "v2": _of("Open Inference Protocol, ModelInfer", open_inference.measure),
    "hot_path": _of("The way of a tensor in a served agent", hot_path.measure),
    "shared_memory": _of("Tensors in shared memory, ModelInfer", shared_memory.measure),
    "loading": _loading,
    "operators": _operators,
    "operator_verdicts": _operator_verdicts,
    "load": _of("The load generator itself", issue_rate.measure),
    "load_client": _of("The client under load, beside a minimal one", load_client.measure),
    "server_statistics": _of("Reading a server's statistics under load", server_statistics.measure),
    "max_qps": _of("max-qps on a server whose model waits 10 ms", rate_search.measure),
    "max_qps_here": _of("max-qps on 10 ms in this process", rate_search.measure_constant),
    "max_qps_mlserver": _of(
        "max-qps on MLServer, whose model computes for 4 ms",
        rate_search.measure_mlserver,
        "max_qps_mlserver: skipped; set INFEROMETER_MLSERVER_PYTHON to a Python with MLServer",
    ),
    "mix": _of("Several models at once, DigitsCNN in this process", mixes.measure),
    "tuning": _of("agent tune on simulated hosts, beside max-qps for every configuration", tuning.measure),
    "batching": _of("Dynamic batching in a served agent", batching.measure),
    "instances": _of(f"Instances of a served model, {instances.THREADS} threads in total", instances.measure),
    "workers": _of("Workers behind one port", workers.measure),
    "mlserver": _of(
        "A served agent against MLServer, ModelInfer",
        mlserver_peer.measure,
        "mlserver: skipped; set INFEROMETER_MLSERVER_PYTHON to a Python with MLServer",
    ),
    "mlserver_doors": _of(
        "The doors of a served agent against those of MLServer",
        mlserver_doors.measure,
        "mlserver_doors: skipped; set INFEROMETER_MLSERVER_PYTHON to a Python with MLServer",
    ),
    "triton": _of(
        "A served agent against Triton, DigitsCNN in ONNX Runtime",
        triton_peer.measure,
        "triton: skipped; set INFEROMETER_TRITON to tritonserver of nvidia-pytriton",
    ),
    "generation": lambda _: generation.measure(),
    "soak": _of("A long-running served agent", soak.measure),
    "plan_cells": _plan_cells,
    "slurm_jobs": _slurm_jobs,
    "page": _of("The page of evaluations", page.measure),
    "page_beside": _of(
        "An evaluation while the page is open",
        page.measure_beside,
        "page_beside: skipped; install chromium and chromium-driver",
    ),
}


def main() -> None:
    """Runs the named sections, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.perf", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"some of: {', '.join(SECTIONS)}")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of the dataset section")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of an operator, on both sides")
    given = parser.parse_args()
    if unknown := set(given.sections) - set(SECTIONS):
        parser.error(f"unknown section {', '.join(sorted(unknown))}; known: {', '.join(SECTIONS)}")

    signal.signal(signal.SIGTERM, _end)
    _print_machine()
    for name, tables in SECTIONS.items():
        if name in given.sections or not given.sections:
            for title, rows in tables(given):
                if rows:
                    print_table(title, rows)
                else:
                    print(f"\n{title}")
    print(f"\nload of the machine at the end: {os.getloadavg()[0]:.1f}")


def _end(*_: object) -> None:
    """Ends the sections' processes, so that nothing waits for their answers, and then this one."""
    for child in psutil.Process().children(recursive=True):
        child.kill()
    sys.exit(143)


def _print_machine() -> None:
    """Prints the machine's description and its load."""
    machine = read_environment(Registry().versions)
    frameworks = ", ".join(f"{name} {version}" for name, version in machine.frameworks.items())
    print(f"{machine.cpu_model}, {machine.usable_cores} usable cores, Python {machine.python_version}")
    print(frameworks)
    print(f"load of the machine at the start: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
