"""Fixtures of all tests: a web server without proxies, and repetition of tests of real time."""

from __future__ import annotations

import functools
import gc
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from file_server import FileServer, running_file_server
from hypothesis import settings

if TYPE_CHECKING:
    from inferometer.evaluators.kinds.operators.measurement import MachinePeak

# Before any test imports ONNX Runtime by itself, which would tell its maker of each session.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# threads for NumPy's small matrices wait for each other by spinning, which takes several times as long
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    # tests run side by side, whose OpenMP threads would take the processors from each other by spinning
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# how long an example takes says nothing on a busy machine
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

_HAS_MXNET = find_spec("mxnet") is not None
# Python 3.13 has no MXNet; files of both kinds of names import it
collect_ignore_glob = [] if _HAS_MXNET else ["*/test_mxnet_*.py", "*/test_gluon_*.py"]

_NO_MXNET = (
    "framework MXNet is not installed",
    "installed: MXNet (not installed)",
    "No module named 'mxnet'",
)
_MEASUREMENTS = 3
_MOST_LATENESS_MS = 1.0  # on a quiet machine it is below 0.5
_MOST_WAIT_S = 45.0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects the tests without collecting garbage, which there is none of and takes a third of the time.

    The collector passes over them from then on: to visit the tests takes longer than many of them, which
    collect garbage before they measure.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_report_header() -> str:
    """Says whether MXNet takes part."""
    return "" if _HAS_MXNET else "MXNet is not installed: its tests are left out"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets tests of real time measure again where they fail: what else a machine does may disturb one.

    What is at fault in the program fails each time. Tests of MXNet, by their names or those of their
    parameters, are skipped where it is not installed.
    """
    for item in items:
        if item.get_closest_marker("real_time"):
            item.add_marker(pytest.mark.flaky(reruns=_MEASUREMENTS - 1))
        if not _HAS_MXNET and "mxnet" in item.name.lower():
            item.add_marker(pytest.mark.skip(reason="MXNet is not installed"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Counts a test that MXNet fails by its absence as skipped, where it is not installed.

    Many tests take MXNet as one of several frameworks. Where it is installed, nothing is changed here.
    """
    report = yield
    if not _HAS_MXNET and report.failed and any(text in report.longreprtext for text in _NO_MXNET):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, "Skipped: MXNet is not installed")
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Waits, before a test of real time measures again, until the machine wakes threads in time.

    Else all measurements of a test may fall into one disturbance by the host, or by another program.
    """
    if getattr(item, "execution_count", 1) > 1 and item.get_closest_marker("real_time"):
        deadline_s = time.monotonic() + _MOST_WAIT_S
        while lateness_ms() > _MOST_LATENESS_MS and time.monotonic() < deadline_s:
            pass


def lateness_ms() -> float:
    """By how much a sleep of 1 ms is too long now: the 99th percentile of a second."""
    late_s = []
    end_s = time.perf_counter() + 1.0
    while (began_s := time.perf_counter()) < end_s:
        time.sleep(0.001)
        late_s.append(time.perf_counter() - began_s - 0.001)
    return sorted(late_s)[int(0.99 * len(late_s))] * 1e3


@pytest.fixture
def needs_mxnet() -> None:
    """Skips the test where MXNet is not installed, as on Python 3.13."""
    if not _HAS_MXNET:
        pytest.skip("MXNet is not installed")


@pytest.fixture
def children_take_interrupts() -> Iterator[None]:
    """Processes that the test starts take SIGINT, also when this process ignores it.

    A shell starts ``make test &`` in a script with SIGINT ignored. Children inherit that, and Python then
    installs no handler.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def _packages_read_once() -> Iterator[None]:
    """The entry points of the installed packages are read once for each value of ``sys.path``.

    A registry reads them whenever it is asked, which takes longer than many of the tests that ask. A plug-in
    of a test is in a folder of its own, which the test puts into ``sys.path``.
    """
    read = metadata.entry_points
    found = functools.cache(lambda path: read())

    def entry_points(**chosen: Any) -> Any:
        return found(tuple(sys.path)).select(**chosen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "entry_points", entry_points)
        yield


_LEAST_CEILING_QPS = 20_000.0
"""What a busy machine could send for a moment is no bound for the loads of all tests after it."""


@functools.cache
def _ceiling() -> float:
    from inferometer.evaluators.load.load_session import calibrate

    return max(calibrate(), _LEAST_CEILING_QPS)


@pytest.fixture(scope="module")
def ceiling_once() -> Iterator[None]:
    """What this machine can send is measured once, which takes most of a second of each search and mix."""
    from inferometer.evaluators.kinds.load import job, mix

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "calibrate", _ceiling)
        patch.setattr(mix, "calibrate", _ceiling)
        yield


@pytest.fixture(scope="session")
def peak_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, str], MachinePeak | None]:
    """What measures the machine's peak in a fresh process, once for all tests and their processes."""
    from inferometer.evaluators.kinds.operators import peak

    measure, folder = peak._in_fresh_process, tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # which the processes share

    def found(threads: int, dtype: str) -> MachinePeak | None:
        path = folder / f"peak-{threads}-{dtype}.pickle"
        if not path.exists():
            part = path.with_suffix(f".{os.getpid()}")
            part.write_bytes(pickle.dumps(measure(threads, dtype)))
            part.rename(path)
        known: MachinePeak | None = pickle.loads(path.read_bytes())
        return known

    return found


@pytest.fixture(scope="session", autouse=True)
def count_frozen_objects() -> Iterator[Callable[[], int]]:
    """Counts the frozen objects, in a test of that; others are told that there are some.

    Each run of a load asks for them, and the collection of the tests has frozen hundreds of thousands. To
    count those takes 50 to 100 ms, longer than many runs.
    """
    count = gc.get_freeze_count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", lambda: 1)
        yield count


@pytest.fixture(scope="module")
def _older_objects() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture
def free_memory(_older_objects: None) -> Iterator[None]:
    """Frees the networks of a test at its end, many of which are cycles.

    The collector passes over the objects from before the test: a framework alone makes half a million, and
    to visit them after each test would take longer than many of the tests.
    """
    gc.freeze()
    yield
    gc.collect()


@pytest.fixture(scope="module")
def weights_drawn_once() -> Iterator[None]:
    """The layers of PyTorch's networks are not initialised twice.

    A layer fills its weights when it is made; the architectures then draw others. Here the first are zero,
    which no test of an architecture would take for its weights. To draw takes half the time of many networks.
    """
    import torch

    drawn = torch.nn.init.kaiming_uniform_

    def kaiming_uniform(tensor: torch.Tensor, a: float = 0, **options: Any) -> torch.Tensor:
        return drawn(tensor, **options) if a == 0 else torch.nn.init.zeros_(tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.init, "kaiming_uniform_", kaiming_uniform)
        yield


# of AlexNet, OverFeat and VGG, most of whose weights are those of the fully connected layers of so many units
_THIN_UNITS = {3072: 48, 4096: 64}
_THIN_RECURRENT_UNITS = 64


@pytest.fixture
def thin_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's networks have few units where the originals have thousands; their layers are the same.

    To draw, copy and export the weights of the originals takes most of the time of many networks.
    """
    import torch

    make = torch.nn.Linear.__init__

    def made(layer: torch.nn.Linear, in_features: int, out_features: int, *given: Any, **named: Any) -> None:
        units = (_THIN_UNITS.get(number, number) for number in (in_features, out_features))
        make(layer, *units, *given, **named)

    monkeypatch.setattr(torch.nn.Linear, "__init__", made)
    recurrent = "inferometer.agent.architectures.pytorch.deep_speech2._HIDDEN"
    monkeypatch.setattr(recurrent, _THIN_RECURRENT_UNITS)


@pytest.fixture
def thin_in_mxnet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of MXNet's networks, with as many units."""
    if not _HAS_MXNET:
        return
    from tests.optional_mxnet import mxnet

    make = mxnet.gluon.nn.Dense.__init__

    def made(layer: Any, units: int, *given: Any, **named: Any) -> None:
        make(layer, _THIN_UNITS.get(units, units), *given, **named)

    monkeypatch.setattr(mxnet.gluon.nn.Dense, "__init__", made)
    recurrent = "inferometer.agent.architectures.mxnet.deep_speech2._HIDDEN_UNITS"
    monkeypatch.setattr(recurrent, _THIN_RECURRENT_UNITS)


@pytest.fixture
def file_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server of files that asks nobody else for them."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with running_file_server() as server:
        yield server
