"""The GPUs of instances, as options and the configuration file give them."""

from __future__ import annotations

from typing import Any

import pytest

from inferometer.agent.inference.session import SessionOptions
from inferometer.client.api.configuration import Configuration
from inferometer.client.serving.options import BATCHING, serving_options
from inferometer.evaluators.jobs.job import SystemRequest
from inferometer.evaluators.jobs.request import DatasetOptions
from inferometer.evaluators.kinds.load.request import WorkloadRequest
from inferometer.manifests.errors import ConfigurationError


def devices(configured: dict[str, Any], **given: Any) -> dict[str, tuple[str, int]]:
    """The device and the number of instances of each configured model, and of all others as ``""``."""
    settings = Configuration.model_validate({"serving": configured}).serving
    options = serving_options(dict.fromkeys(BATCHING) | given, settings, SessionOptions(threads=1))
    found = {name: options.of(name) for name in ("", *settings.models)}
    return {name: (str(each.device), each.batching.instances) for name, each in found.items()}


@pytest.mark.parametrize(
    ("configured", "given", "found"),
    [
        ({}, {}, {"": ("cpu", 1)}),
        ({}, {"gpus": "0,1", "instances": 3}, {"": ("gpu:0,1", 3)}),
        ({}, {"gpus": "1,0", "instances": "auto"}, {"": ("gpu:1,0", 2)}),
        ({"gpus": [0, 0], "instances": "auto"}, {}, {"": ("gpu:0,0", 2)}),
        ({"gpus": "0,1", "instances": 2}, {"gpus": "1"}, {"": ("gpu:1", 2)}),  # the flag precedes the file
        ({"gpus": None}, {}, {"": ("cpu", 1)}),
        (
            {"models": {"A": {"gpus": [1, 2], "instances": 4}, "B": {"gpus": "3"}, "C": {"instances": 2}}},
            {"gpus": "0"},
            {"": ("gpu:0", 1), "A": ("gpu:1,2", 4), "B": ("gpu:3", 1), "C": ("gpu:0", 2)},
        ),
    ],
)
def test_a_model_is_served_on_the_gpus_of_its_own_or_else_of_all(
    configured: dict[str, Any], given: dict[str, Any], found: dict[str, tuple[str, int]]
) -> None:
    assert devices(configured, **given) == found


def test_a_model_with_fewer_instances_than_gpus_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^serving.models.A: gpu:0,1: each GPU needs an instance, but"
    ):
        devices({"models": {"A": {"instances": 1}}}, gpus="0,1", instances=2)


@pytest.mark.parametrize(
    ("options", "device", "instances"),
    [
        ({"gpus": "0,1", "instances": 3}, "gpu:0,1", 3),
        ({"gpus": "1,0,0", "instances": "auto"}, "gpu:1,0,0", 3),
        ({"gpus": "4"}, "gpu:4", 1),
        ({}, "cpu", 1),
    ],
)
def test_a_load_in_this_process_runs_on_the_gpus(
    options: dict[str, Any], device: str, instances: int
) -> None:
    request = WorkloadRequest(
        system=SystemRequest(model_name="DigitsCNN"), dataset=DatasetOptions().choice(), **options
    )

    assert (str(request.system.session.device), request.instances) == (device, instances)
    assert "gpus" not in request.load_options().further
