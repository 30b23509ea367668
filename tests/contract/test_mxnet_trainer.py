"""What MXNet's trainer has of its own: two APIs, several devices, the kvstore, and late failures."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainer_fixtures import (
    batch_of,
    manifest_of,
    parameters_of,
    set_parameters,
    trainer_of,
    write_architectures,
)

from inferometer.agent.frameworks.mxnet.kvstore import KVSTORES, kvstore_environment, serve_kvstore
from inferometer.agent.hardware.environment import CPU, Device, DeviceKind, Precision, Weights
from inferometer.agent.training.trainer import OPTIMIZERS, OptimizerOptions, Rank, Trainer
from inferometer.manifests.errors import ArtifactError, ConfigurationError, TrainingError

CPUS = tuple(Device(DeviceKind.CPU, index) for index in range(3))
Opened = Callable[..., AbstractContextManager[Trainer]]

LATE = """
from mxnet import gluon
from mxnet.gluon import nn

class Late(gluon.HybridBlock):
    implements = "late"
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.fc = nn.Dense(3, in_units=5)
    def hybrid_forward(self, F, data):
        # fails where it is computed, for a matrix that is not positive definite
        first = F.slice_axis(data, axis=1, begin=0, end=1)
        factor = F.linalg.potrf(F.reshape(F.mean(first), shape=(1, 1)))
        return F.broadcast_add(self.fc(data), 0 * factor)
"""
RECURRENT = """
from mxnet.gluon import nn, rnn

class Recurrent(nn.HybridSequential):
    implements = "recurrent"
    def __init__(self):
        super().__init__()
        self.add(rnn.RNN(8, layout="NTC", input_size=6), nn.Dense(5, in_units=8, flatten=False))
"""
PAIR = """
from mxnet import gluon
from mxnet.gluon import nn

class Pair(gluon.HybridBlock):
    implements = "pair"
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.fc = nn.Dense(3, in_units=5)
    def hybrid_forward(self, F, data):
        return self.fc(data), data
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_architectures(tmp_path_factory.mktemp("architectures"))
    for name, text in (("late", LATE), ("recurrent", RECURRENT), ("pair", PAIR)):
        (folder / "mxnet" / f"{name}.py").write_text(text)
    return folder


@pytest.fixture
def opened(directory: Path) -> Opened:
    return lambda name, **options: trainer_of("MXNet", name, directory, **options)


def trained(
    opened: Opened, name: str, sizes: tuple[int, ...] = (8, 8, 3, 8), **options: Any
) -> tuple[Any, ...]:
    """The losses of some steps, the parameters after them, and scores."""
    with opened(name, **options) as trainer:
        losses = [
            trainer.step(trainer.place(batch_of(name, samples, seed))).loss
            for seed, samples in enumerate(sizes)
        ]
        return losses, list(parameters_of(trainer).values()), trainer.scores(batch_of(name, 5).inputs)


def assert_alike(found: tuple[Any, ...], expected: tuple[Any, ...], tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=tolerance)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance)
    np.testing.assert_allclose(found[2], expected[2], atol=10 * tolerance)


@pytest.mark.parametrize("name", ["linear", "plain", "normalised", "speech"])
@pytest.mark.parametrize("devices", [1, 2])
def test_module_trains_as_gluon_does(opened: Opened, name: str, devices: int) -> None:
    runs = [trained(opened, name, api=api, devices=CPUS[:devices]) for api in ("gluon", "module")]

    assert_alike(runs[1], runs[0])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_module_has_every_optimizer(opened: Opened, optimizer: str) -> None:
    chosen = OptimizerOptions(optimizer, learning_rate=0.002)

    runs = [trained(opened, "plain", api=api, optimizer=chosen) for api in ("gluon", "module")]

    assert_alike(runs[1], runs[0])


def test_module_trains_in_bfloat16(opened: Opened) -> None:
    runs = [trained(opened, "plain", api=api, precision=Precision.BFLOAT16) for api in ("gluon", "module")]

    assert_alike(runs[1], runs[0], 1e-3)


@pytest.mark.parametrize("api", ["gluon", "module"])
def test_recurrent_layers_train_in_bfloat16(opened: Opened, api: str) -> None:
    manifest = manifest_of("MXNet", "recurrent", dimensions=(12, 6))
    manifest = manifest.model_copy(update={"training": manifest_of("MXNet", "speech").training})
    options = {"manifest": manifest, "precision": Precision.BFLOAT16, "api": api}
    with opened("recurrent", optimizer=OptimizerOptions(learning_rate=0.05), **options) as trainer:
        batch = trainer.place(batch_of("speech", 8))
        losses = [trainer.step(batch).loss for _ in range(20)]

    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("api", ["gluon", "module"])
@pytest.mark.parametrize("kvstore", ["", "local", "device"])
@pytest.mark.parametrize("name", ["plain", "speech"])
def test_several_devices_train_as_one_does(opened: Opened, name: str, kvstore: str, api: str) -> None:
    sizes = (8, 7, 1, 2, 8)  # one sample for three devices, too

    several = trained(opened, name, sizes, devices=CPUS, communication=kvstore, api=api)

    assert_alike(several, trained(opened, name, sizes))


def test_the_parts_of_a_step_on_two_devices_have_communication(opened: Opened) -> None:
    with opened("plain", devices=CPUS[:2]) as trainer:
        parts = trainer.step(trainer.place(batch_of("plain", 8)), parts=True).parts

    assert parts is not None
    assert parts.communicate_ns > 0


def test_parameters_are_set_on_all_devices(opened: Opened) -> None:
    with opened("linear", devices=CPUS[:2]) as trainer, opened("linear") as single:
        given = {name: values + 1 for name, values in parameters_of(trainer).items()}
        set_parameters(trainer, given)
        set_parameters(single, given)
        batch = batch_of("linear", 6)
        losses = [each.step(each.place(batch)).loss for each in (trainer, single)]

    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("api", ["gluon", "module"])
def test_what_is_saved_is_where_another_training_goes_on(opened: Opened, tmp_path: Path, api: str) -> None:
    path = tmp_path / "trained.params"
    with opened("normalised", api=api) as trainer:
        for seed in range(4):
            trainer.step(trainer.place(batch_of("normalised", 16, seed)))
        trainer.save(path)
        scores = trainer.scores(batch_of("normalised", 5).inputs)
    again = manifest_of("MXNet", "normalised", weights=path)

    with opened("normalised", manifest=again, weights=Weights.PRETRAINED, api=api) as trainer:
        np.testing.assert_allclose(trainer.scores(batch_of("normalised", 5).inputs), scores, atol=1e-6)


def test_an_operator_that_fails_late_fails_the_step_that_it_is_in(opened: Opened) -> None:
    good, bad = batch_of("linear", 4), batch_of("linear", 4)
    good.inputs[:, 0], bad.inputs[:, 0] = 1, -1
    with opened("late", manifest=manifest_of("MXNet", "late", dimensions=(5,))) as trainer:
        placed, wrong = trainer.place(good), trainer.place(bad)
        before = trainer.step(placed).loss
        with pytest.raises(TrainingError, match=r"train on a batch of 4: .*potrf") as caught:
            trainer.step(wrong)
        after = [trainer.step(placed).loss for _ in range(3)]

    assert "\n" not in str(caught.value)
    assert after[-1] < before


def test_a_network_with_two_outputs_is_refused(opened: Opened) -> None:
    with (
        pytest.raises(ArtifactError, match=r"has the shape \(1, 3\), \(1, 5\)") as caught,
        opened("pair", manifest=manifest_of("MXNet", "pair", dimensions=(5,))),
    ):
        pass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"communication": "horovod"}, "use dist_sync"),
        ({"communication": "dist_synk"}, 'did you mean "dist_sync"'),
        ({"communication": "pigeon"}, ", ".join(KVSTORES)),
        ({"communication": "nccl"}, "on CPUs use local"),
        ({"communication": "dist_sync"}, "has no scheduler address"),
        ({"communication": "local", "rank": Rank(0, 2, address="127.0.0.1:1")}, "use dist_sync"),
        ({"communication": "dist_sync", "rank": Rank(0, 2, address="nowhere")}, 'address is "nowhere"'),
        ({"api": "modul"}, "gluon, module"),
        ({"devices": (CPU, CPU)}, "devices: found cpu, cpu"),
        ({"devices": (CPU, Device(DeviceKind.GPU))}, "found CPUs and GPUs"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(
    opened: Opened, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigurationError) as caught, opened("linear", **options):
        pass

    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_environment_of_a_kvstores_process() -> None:
    assert kvstore_environment("worker", "node1:9091", 4, 2) == {
        "DMLC_ROLE": "worker",
        "DMLC_PS_ROOT_URI": "node1",
        "DMLC_PS_ROOT_PORT": "9091",
        "DMLC_NUM_WORKER": "4",
        "DMLC_NUM_SERVER": "2",
        "PS_HEARTBEAT_INTERVAL": "2",
    }
    local = kvstore_environment("server", "localhost:9091", 1, 1)
    assert local["DMLC_NODE_HOST"] == local["DMLC_PS_ROOT_URI"] == "127.0.0.1"


@pytest.mark.parametrize(
    "arguments",
    [
        ("worker", "node1", 1, 1),
        ("worker", ":80", 1, 1),
        ("worker", "node1:x", 1, 1),
        ("worker", "node1:70000", 1, 1),
        ("driver", "node1:80", 1, 1),
        ("worker", "node1:80", 0, 1),
        ("worker", "node1:80", 1, 0),
    ],
)
def test_an_environment_that_cannot_be_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigurationError):
        kvstore_environment(*arguments)


def test_only_a_scheduler_and_a_server_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMLC_ROLE", "worker")
    with pytest.raises(ConfigurationError, match="allowed: scheduler, server"):
        serve_kvstore()


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_a_scheduler_and_a_server_say_which_host_they_do_not_find(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for name, value in {"ROLE": role, "PS_ROOT_URI": "node1.invalid", "PS_ROOT_PORT": "9091"}.items():
        monkeypatch.setenv(f"DMLC_{name}", value)
    with pytest.raises(ConfigurationError, match=r"^node1\.invalid: the ranks meet at node1\.invalid:9091"):
        serve_kvstore()
