"""Breaks chosen lines of the source one after the other, and demands that a test fails for each.

    python -m tools.mutants                  all of them
    python -m tools.mutants --only store     those whose file or name contains the text
    python -m tools.mutants --list           prints them and runs nothing

A mutant is the source with a fault in one line that a user would notice, and the tests that must find it.
They run in a copy of the checkout that includes uncommitted changes; the checkout itself is never touched.
``make test`` shows that the tests pass without the fault.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PASSED, _FAILED = 0, 1  # exit codes of pytest
_LONGEST_S = 300


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault in one line of the source.

    Attributes:
        name: What the user would notice.
        path: The file, from the root of the checkout.
        line: The line, or the part of it that is replaced; it occurs once in the file.
        broken: What replaces it.
        tests: Files or folders in which at least one test must fail; or other arguments of pytest.
    """

    name: str
    path: str
    line: str
    broken: str
    tests: tuple[str, ...]


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "p99 is the value below it",
        "evaluators/statistics.py",
        'percent, method="linear"',
        'percent, method="lower"',
        ("tests/unit/evaluators/test_statistics.py",),
    ),
    Mutant(
        "the interval of a mean is too narrow",
        "evaluators/statistics.py",
        "means.std(ddof=1)",
        "means.std()",
        ("tests/unit/evaluators/precision/test_batch_intervals.py",),
    ),
    Mutant(
        "an interval of many runs is that of infinitely many",
        "evaluators/statistics.py",
        "return Z_95 + first / degrees + second / degrees**2",
        "return Z_95",
        ("tests/unit/evaluators/load/test_intervals.py",),
    ),
    Mutant(
        "inputs without a label count as wrong",
        "evaluators/tasks/classification.py",
        "self._evaluated += len(hits)",
        "self._evaluated += len(samples)",
        ("tests/unit/evaluators/test_accuracy.py",),
    ),
    Mutant(
        "AP75 is AP50",
        "evaluators/tasks/average_precision.py",
        "_mean(precision[_THREE_QUARTERS, ..., 0]),",
        "_mean(precision[_HALF, ..., 0]),",
        ("tests/unit/evaluators/tasks/test_coco_ap.py",),
    ),
    Mutant(
        "the union of classes counts what is recognised twice",
        "evaluators/tasks/images.py",
        "    union = true + predicted - recognised",
        "    union = true + predicted",
        ("tests/unit/evaluators/tasks/test_segmentation_metric.py",),
    ),
    Mutant(
        "the warm-up is measured",
        "evaluators/kinds/batches/run.py",
        "self._started_ns = self._ended_ns = self.clock()",
        "self._ended_ns = self.clock()",
        ("tests/unit/evaluators/test_dataset_run.py",),
    ),
    Mutant(
        "a run of an operator is over before it is computed",
        "agent/frameworks/mxnet/operators/runner.py",
        "for output in self._outputs:",
        "for output in ():",
        ("tests/contract/test_operator_runners.py", "-k=has_computed"),
    ),
    Mutant(
        "latency counts from sending",
        "evaluators/load/queries.py",
        "self.done_ns - self.scheduled_ns, NEVER_NS)",
        "self.done_ns - self.sent_ns, NEVER_NS)",
        ("tests/unit/evaluators/load/test_query_log.py",),
    ),
    Mutant(
        "queries that were sent late are in time",
        "evaluators/load/queries.py",
        "self._all.done_ns[part] - self.scheduled_ns[part] <=",
        "self._all.done_ns[part] - self._all.sent_ns[part] <=",
        ("tests/unit/evaluators/load/test_query_log.py",),
    ),
    Mutant(
        "the queue after a lag is taken for the system's",
        "evaluators/load/queries.py",
        "self.scheduled_ns + np.maximum(lag_ns, lag_ns[began])",
        "self.scheduled_ns + lag_ns",
        ("tests/unit/evaluators/load/test_lag.py",),
    ),
    Mutant(
        "a closed loop has one query more in flight",
        "evaluators/load/load_session.py",
        "begin_ns = [0] * loop.concurrency if",
        "begin_ns = [0] * (loop.concurrency + 1) if",
        ("tests/unit/evaluators/load/test_closed_loop.py",),
    ),
    Mutant(
        "the way to a server is forgotten in its model",
        "evaluators/kinds/load/single_server.py",
        "np.count_nonzero(walk > bound_s - self._delay_s)",
        "np.count_nonzero(walk > bound_s)",
        ("tests/unit/evaluators/max_qps/test_single_server.py", "-k=delay_on_the_way"),
    ),
    Mutant(
        "a stored load has lost its repeated answers",
        "evaluators/kinds/load/documents.py",
        '"repeated": run.queries.repeated,',
        '"repeated": 0,',
        ("tests/contract/test_load_stores.py",),
    ),
    Mutant(
        "a group is not found by its id",
        "evaluators/store/evaluation_store.py",
        'wanted.evaluation_id} for key in ("_id", "group_id")',
        'wanted.evaluation_id} for key in ("_id",)',
        ("tests/contract/test_stores.py", "-k=id_is_that_of"),
    ),
    Mutant(
        "a column of a report has another figure",
        "evaluators/kinds/ingestion/kind.py",
        'value="summary.bytes_per_s"',
        'value="summary.batches_per_s"',
        ("tests/reports/test_ingestion_report.py",),
    ),
    Mutant(
        "a higher rate is worse",
        "evaluators/verdict.py",
        "above, below = below, above",
        "above, below = above, below",
        ("tests/unit/evaluators/comparing/test_comparison_of_rates.py",),
    ),
    Mutant(
        "every rank trains on the same samples",
        "evaluators/loading/loader.py",
        "np.array_split(piece, options.ranks)[options.rank]",
        "np.array_split(piece, options.ranks)[0]",
        ("tests/unit/evaluators/loading/test_epoch_order.py",),
    ),
    Mutant(
        "every epoch has the same order",
        "evaluators/loading/loader.py",
        "random_state([options.seed, epoch])",
        "random_state([options.seed, 0])",
        ("tests/unit/evaluators/loading/test_epoch_order.py",),
    ),
    Mutant(
        "a model that has diverged is validated",
        "evaluators/kinds/training/job.py",
        " & np.isfinite(scores).all(axis=1)",
        "",
        ("tests/unit/evaluators/training/test_validation.py",),
    ),
    Mutant(
        "what was loaded before the clock started counts",
        "evaluators/kinds/ingestion/job.py",
        "if not self.loader.hold(self._total):",
        "if self.loader.hold(self._total):",
        ("tests/unit/evaluators/loading/test_ingestion_run.py",),
    ),
    Mutant(
        "an operator that goes wrong while it is timed is right",
        "evaluators/kinds/operators/checks.py",
        "        if not difference.is_right:",
        "        if not difference.is_right and gradient:",
        ("tests/unit/evaluators/operators/test_checks.py",),
    ),
    Mutant(
        "one request more waits than may",
        "agent/serving/request_queue.py",
        "if waiting >= self._limit:",
        "if waiting > self._limit:",
        ("tests/unit/agent/serving/test_request_queue.py",),
    ),
    Mutant(
        "a client that died keeps its session",
        "agent/server/native/sessions.py",
        "(abandoned_s if entry.abandoned else self._idle_s)",
        "self._idle_s",
        ("tests/unit/agent/server/test_server_sessions.py",),
    ),
    Mutant(
        "any secret opens an agent",
        "agent/server/admission.py",
        "for value in sent) > 0",
        "for value in sent) >= 0",
        ("tests/integration/test_server_secret.py",),
    ),
    Mutant(
        "a site whose name ends in localhost uses an agent",
        "agent/server/admission.py",
        'name.endswith(f".{_LOCAL}")',
        "name.endswith(_LOCAL)",
        ("tests/unit/agent/server/test_host_names.py",),
    ),
    Mutant(
        "BF16 is read as other numbers",
        "agent/open_inference/codec.py",
        "(array.astype(np.uint32) << 16)",
        "(array.astype(np.uint32) << 15)",
        ("tests/unit/agent/server/test_open_inference_tensors.py",),
    ),
    Mutant(
        "all spans lie below the topmost",
        "agent/tracing/recorder.py",
        "clock(), self.parent_id, span_id=inner.parent_id)",
        "clock(), self.recorder.context.span_id, span_id=inner.parent_id)",
        ("tests/unit/agent/tracing/test_span_recorder.py",),
    ),
    Mutant(
        "the clock of an agent is read when its answer comes",
        "client/remote/native/calls.py",
        "theirs_ns - (sent_ns + returned_ns) // 2",
        "theirs_ns - returned_ns",
        ("tests/integration/test_remote_traces.py", "-k=round_trip"),
    ),
    Mutant(
        "a record of several parts has lost bytes",
        "evaluators/datasets/recordio.py",
        "return MAGIC_BYTES.join(parts)",
        'return b"".join(parts)',
        ("tests/unit/evaluators/datasets/test_recordio.py",),
    ),
    Mutant(
        "all channels have the mean of the first",
        "agent/preprocessing/preprocessor.py",
        "np.subtract(plane, self._mean[channel],",
        "np.subtract(plane, self._mean[0],",
        ("tests/unit/agent/preprocessing/test_preprocessing.py",),
    ),
    Mutant(
        "an exported program reads memory beside its tensors",
        "agent/frameworks/pytorch/programs.py",
        " and not _REFUSED.fullmatch(name)",
        "",
        ("tests/contract/test_exported_programs.py",),
    ),
    Mutant(
        "a file with the first digit of its checksum is right",
        "agent/artifacts/downloads.py",
        "actual.startswith(expected)",
        "actual.startswith(expected[:1])",
        ("tests/unit/agent/artifacts/test_artifacts.py", "-k=changed_file"),
    ),
    Mutant(
        "an archive writes outside of its folder",
        "agent/artifacts/downloads.py",
        'if path.is_absolute() or ".." in path.parts or',
        "if path.is_absolute() or",
        ("tests/unit/agent/artifacts/test_archives.py",),
    ),
    Mutant(
        "a plan runs what it excludes",
        "evaluators/plans/cells.py",
        "if not any(fits(values, each, strict=True) is not None for each in plan.exclude):",
        "if values:",
        ("tests/unit/evaluators/plans/test_plan_cells.py",),
    ),
    Mutant(
        "a resumed plan leaves out what was interrupted",
        "evaluators/plans/running/driver.py",
        "if result is None or result.ended is Ended.INTERRUPTED:",
        "if result is None:",
        ("tests/integration/test_plan_driver.py", "-k=interrupted_runs_again"),
    ),
    Mutant(
        "a job installs packages from the network",
        "client/api/clusters.py",
        "--disable-pip-version-check --no-index '",
        "--disable-pip-version-check '",
        ("tests/cli/test_slurm_script.py",),
    ),
    Mutant(
        "a lost database has the exit code of a failure",
        "client/cli/output.py",
        "errors.StoreError: 5,",
        "errors.StoreError: 1,",
        ("tests/cli/test_bad_input.py",),
    ),
    Mutant(
        "p95 is judged unless asked for",
        "evaluators/jobs/options.py",
        "PERCENTILE = 99.0",
        "PERCENTILE = 95.0",
        ("tests/architecture/test_command_reference.py",),
    ),
    Mutant(
        "the page does not tell the dataset's checksum",
        "client/web/documents.py",
        '("checksum of the dataset", dataset.checksum),',
        "",
        ("tests/web/test_facts.py",),
    ),
)


def broken_text(mutant: Mutant, root: Path) -> str:
    """Returns the text of a mutant's file with the fault.

    Raises:
        ValueError: The line does not occur exactly once, or one of the tests does not exist.
    """
    for test in mutant.tests:
        if test.startswith("tests/") and not (root / test.partition("::")[0]).exists():
            raise ValueError(f"{mutant.name}: {test} does not exist; name the tests that must fail")
    path = root / mutant.path
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if (count := text.count(mutant.line)) != 1:
        raise ValueError(f"{mutant.name}: {mutant.path} has this {count} times, not once: {mutant.line}")
    return text.replace(mutant.line, mutant.broken)


def copy_checkout(folder: Path) -> None:
    """Copies what git does not ignore, with their modification times, so that Python compiles each once."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if os.path.lexists(ROOT / name):  # it may be deleted and not committed
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


def failed_test(mutant: Mutant, folder: Path) -> str:
    """Runs the tests of a mutant in a copy, up to the first that fails; returns its name, empty if none does.

    Raises:
        ValueError: pytest could not run them.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider", *mutant.tests]
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    path, kept = folder / mutant.path, folder / "kept"
    broken = broken_text(mutant, folder)
    path.replace(kept)
    try:
        path.write_text(broken, encoding="utf-8")
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_LONGEST_S
        )
    except subprocess.TimeoutExpired:
        return ""
    finally:
        kept.replace(path)
    if done.returncode not in (_PASSED, _FAILED):
        raise ValueError(f"{mutant.name}: pytest cannot run its tests\n{done.stdout}{done.stderr}")
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return found[1] if found else ""


def survivors(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Returns the mutants for which no test fails; prints each with its seconds and the test that failed."""
    survived = []
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        copy_checkout(Path(folder))
        for number, mutant in enumerate(mutants, 1):
            began_s = time.monotonic()
            test = failed_test(mutant, Path(folder))
            took_s = time.monotonic() - began_s
            print(f"{number}/{len(mutants)} {took_s:5.1f} s  {mutant.name}: {test or 'SURVIVED'}", flush=True)
            survived += [] if test else [mutant]
    return survived


def main() -> int:
    """Runs the mutants that the command line chooses; returns 1 if one survives."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose file or name contains it")
    parser.add_argument("--list", action="store_true", help="print them and run nothing")
    options = parser.parse_args()
    mutants = [each for each in MUTANTS if options.only.lower() in f"{each.path} {each.name}".lower()]
    try:
        for mutant in mutants:
            broken_text(mutant, ROOT)
            if options.list:
                print(f"{mutant.path}: {mutant.name}: {' '.join(mutant.tests)}")
        survived = [] if options.list else survivors(mutants)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    for mutant in survived:
        print(
            f"survived: {mutant.name}\n  {mutant.path}\n- {mutant.line}\n+ {mutant.broken}", file=sys.stderr
        )
    if not mutants:
        print(f'no file or name of a mutant contains "{options.only}"; see --list', file=sys.stderr)
    return 1 if survived or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
