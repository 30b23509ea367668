"""Measures speed, each figure as a ratio taken side by side in one run: ``python -m tests.perf``."""

from __future__ import annotations

import argparse
import os

from agent.environment import read_environment
from agent.registry import Registry
from tests.perf import (
    batching,
    dataset_overhead,
    grpc_round_trip,
    issue_rate,
    mlserver_peer,
    open_inference,
    resnet50,
    soak,
    start_up,
    stored_spans,
    tracing,
)
from tests.perf.ratios import print_table

SECTIONS = (
    "start_up",
    "dataset",
    "resnet50",
    "tracing",
    "grpc",
    "v2",
    "load",
    "batching",
    "mlserver",
    "soak",
)


def main() -> None:
    """Runs the sections that are named, or all."""
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
        print_table(f"predict dataset over a bare loop, {given.threads} thread(s) on both sides", added)
        print_table("Overlapping preparation and prediction, over one after the other (the default)", overlap)
    if "resnet50" in sections:
        what = f"ResNet50, random weights, batches of {resnet50.BATCH_SIZE}"
        print_table(f"{what}, the frameworks' own number of threads", resnet50.measure(given.rounds))
    if "tracing" in sections:
        print_table("Tracing, ResNet50, random weights, from tensors", tracing.measure(given.rounds))
        print_table(f"Reading {stored_spans.SPANS:,} stored spans", stored_spans.measure())
    if "grpc" in sections:
        print_table("gRPC Predict", grpc_round_trip.measure())
    if "v2" in sections:
        print_table("Open Inference Protocol, ModelInfer", open_inference.measure())
    if "load" in sections:
        print_table("The load generator itself", issue_rate.measure())
    if "batching" in sections:
        print_table("Dynamic batching in a served agent", batching.measure())
    if "mlserver" in sections:
        if rows := mlserver_peer.measure():
            print_table("A served agent beside MLServer, ModelInfer of 600 KB", rows)
        else:
            print("\nmlserver: left out; INFERSCOPE_MLSERVER_PYTHON names no Python that has MLServer")
    if "soak" in sections:
        print_table("A served agent that goes on", soak.measure())
    print(f"\nload of the machine at the end: {os.getloadavg()[0]:.1f}")


def _print_machine() -> None:
    """Says what is measured on, and how busy it is with other work."""
    machine = read_environment(Registry().versions)
    frameworks = ", ".join(f"{name} {version}" for name, version in machine.frameworks.items())
    print(f"{machine.cpu_model}, {machine.usable_cores} usable cores, Python {machine.python_version}")
    print(frameworks)
    print(f"load of the machine at the start: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
