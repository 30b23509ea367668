"""Command line of the benchmarks: ``python -m tests.perf``. Each figure is a ratio within one run."""

from __future__ import annotations

import argparse
import os

from inferometer.agent.hardware.environment import read_environment
from inferometer.agent.inference.registry import Registry
from tests.perf import (
    batching,
    dataset_overhead,
    grpc_round_trip,
    hot_path,
    issue_rate,
    load_client,
    loading,
    mlserver_peer,
    open_inference,
    operator_times,
    operator_verdicts,
    page,
    plan_cells,
    rate_search,
    reference,
    resnet50,
    shared_memory,
    slurm_submission,
    soak,
    start_up,
    stored_spans,
    tracing,
    training_steps,
    triton_peer,
)
from tests.perf.ratios import print_table

SECTIONS = (
    "start_up",
    "dataset",
    "resnet50",
    "reference",
    "tracing",
    "training",
    "grpc",
    "v2",
    "hot_path",
    "shared_memory",
    "loading",
    "operators",
    "operator_verdicts",
    "load",
    "load_client",
    "max_qps",
    "batching",
    "mlserver",
    "triton",
    "soak",
    "plan_cells",
    "slurm_jobs",
    "page",
    "page_beside",
)


def main() -> None:
    """Runs the named sections, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.perf", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"some of: {', '.join(SECTIONS)}")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of the dataset section")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of an operator, on both sides")
    given = parser.parse_args()
    if unknown := set(given.sections) - set(SECTIONS):
        parser.error(f"unknown section {', '.join(sorted(unknown))}; known: {', '.join(SECTIONS)}")
    sections = given.sections or SECTIONS

    _print_machine()
    if "start_up" in sections:
        print_table("Start-up, whole processes", start_up.measure())
    if "dataset" in sections:
        added, overlap = dataset_overhead.measure(given.rounds, given.threads)
        print_table(f"predict dataset / bare loop, {given.threads} thread(s) on both sides", added)
        print_table("Preparing while predicting / preparing before predicting (the default)", overlap)
    if "resnet50" in sections:
        what = f"ResNet50, random weights, batches of {resnet50.BATCH_SIZE}"
        print_table(f"{what}, each framework's default number of threads", resnet50.measure(given.rounds))
    if "reference" in sections:
        print_table("ResNet50 in PyTorch beside torch.utils.benchmark, batches of 1", reference.measure())
    if "tracing" in sections:
        print_table("Tracing, ResNet50, random weights, from tensors", tracing.measure(given.rounds))
        print_table(f"Reading {stored_spans.SPANS:,} stored spans", stored_spans.measure())
    if "training" in sections:
        what = f"Steps of training / bare loop, {given.threads} thread(s) on both sides"
        print_table(what, training_steps.measure(given.rounds, given.threads))
    if "grpc" in sections:
        print_table("gRPC Predict", grpc_round_trip.measure())
    if "v2" in sections:
        print_table("Open Inference Protocol, ModelInfer", open_inference.measure())
    if "hot_path" in sections:
        print_table("The way of a tensor in a served agent", hot_path.measure())
    if "shared_memory" in sections:
        print_table("Tensors in shared memory, ModelInfer", shared_memory.measure())
    if "loading" in sections:
        what = f"batches of {loading.BATCH_SIZE}, {loading.WORKERS} workers on both sides, samples/s"
        print_table(f"Loading {loading.IMAGES} JPEGs of 256 × 256, {what}", loading.measure(given.rounds))
    if "operators" in sections:
        if operator_times.OPPERF not in os.environ:
            print("\noperators: without MXNet; INFEROMETER_OPPERF names the folder of opperf")
        what = f"{given.threads} thread(s) on both sides"
        print_table(f"Single operators, {what}", operator_times.measure(given.rounds, given.threads))
    if "operator_verdicts" in sections:
        what = f"{operator_verdicts.COMPARISONS} comparisons of {operator_verdicts.PROCESSES} processes each"
        print_table(f"agent compare of operators, {what}", operator_verdicts.measure(given.threads))
    if "load" in sections:
        print_table("The load generator itself", issue_rate.measure())
    if "load_client" in sections:
        print_table("The client under load, beside a minimal one", load_client.measure())
    if "max_qps" in sections:
        print_table("max-qps on a server whose model waits 10 ms", rate_search.measure())
    if "batching" in sections:
        print_table("Dynamic batching in a served agent", batching.measure())
    if "mlserver" in sections:
        if rows := mlserver_peer.measure():
            print_table("A served agent against MLServer, ModelInfer of 600 KB", rows)
        else:
            print("\nmlserver: skipped; set INFEROMETER_MLSERVER_PYTHON to a Python with MLServer")
    if "triton" in sections:
        if rows := triton_peer.measure():
            print_table("A served agent against Triton, DigitsCNN in ONNX Runtime", rows)
        else:
            print("\ntriton: skipped; set INFEROMETER_TRITON to tritonserver of nvidia-pytriton")
    if "soak" in sections:
        print_table("A long-running served agent", soak.measure())
    if "plan_cells" in sections:
        print_table("A cell of a plan, DigitsCNN in ONNX Runtime", plan_cells.measure(given.rounds))
    if "slurm_jobs" in sections:
        if rows := slurm_submission.measure():
            print_table(f"{slurm_submission.JOBS} empty runs on a real Slurm", rows)
        else:
            print("\nslurm_jobs: skipped; install slurm-wlm and munge")
        if slurm_submission.PYTHON not in os.environ:
            print(f"\nslurm_jobs: without submitit; {slurm_submission.PYTHON} names a Python with it")
    if "page" in sections:
        print_table("The page of evaluations", page.measure())
    if "page_beside" in sections:
        if rows := page.measure_beside():
            print_table("An evaluation while the page is open", rows)
        else:
            print("\npage_beside: skipped; install chromium and chromium-driver")
    print(f"\nload of the machine at the end: {os.getloadavg()[0]:.1f}")


def _print_machine() -> None:
    """Prints the machine's description and its load."""
    machine = read_environment(Registry().versions)
    frameworks = ", ".join(f"{name} {version}" for name, version in machine.frameworks.items())
    print(f"{machine.cpu_model}, {machine.usable_cores} usable cores, Python {machine.python_version}")
    print(frameworks)
    print(f"load of the machine at the start: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
