"""Devices, and which of them an instance takes."""

from __future__ import annotations

import pytest

from inferometer.agent.hardware.environment import CPU, Device, DeviceKind
from inferometer.agent.inference.session import SessionOptions
from inferometer.manifests.errors import ConfigurationError


@pytest.mark.parametrize(
    ("device", "text", "counts"),
    [
        (CPU, "cpu", {"cpu": 5}),
        (Device(DeviceKind.GPU, 3), "gpu:3", {"gpu:3": 5}),
        (Device.gpus("0,1"), "gpu:0,1", {"gpu:0": 3, "gpu:1": 2}),
        (Device.gpus("2,0,0"), "gpu:2,0,0", {"gpu:2": 2, "gpu:0": 3}),
        (Device.gpus("0,0"), "gpu:0,0", {"gpu:0": 5}),
    ],
)
def test_instances_take_the_gpus_in_turn(device: Device, text: str, counts: dict[str, int]) -> None:
    assert str(device) == text
    assert {str(each): count for each, count in device.counts(5).items()} == counts
    assert device.of(len(device.indices)) == device.of(0) == device.first(1)
    assert device.first(2).counts(2) == device.counts(2)
    assert device.first(64) == device


def test_the_first_instance_is_on_the_first_gpu_and_auto_is_one_for_each() -> None:
    options = SessionOptions(device=Device.gpus("2,1"))

    assert options.predictor.device == Device(DeviceKind.GPU, 2)
    assert options.fitting_instances() == options.fitting_instances(workers=3) == 2


@pytest.mark.parametrize("indices", ["", "0,", "-1", "0, 1", "x", "[0, 1]", "99999"])
def test_indices_that_are_none_are_refused(indices: str) -> None:
    with pytest.raises(ConfigurationError, match="; give indices of GPUs, such as 0,1"):
        Device.gpus(indices)


def test_each_gpu_needs_an_instance() -> None:
    Device.gpus("0,1").check_instances(2)
    with pytest.raises(ConfigurationError, match="gpu:0,1: each GPU needs an instance, but instances is 1"):
        Device.gpus("0,1").check_instances(1)
