"""Changing how a server serves a model: what a server like Triton is asked to load, and what is refused."""

from collections.abc import Callable
from contextlib import ExitStack

import grpc
import pytest
from kserve_server import Served, Tensor, running

from inferometer.client.remote.address import KServeAddress
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.kserve.control import ModelControl
from inferometer.client.remote.kserve.server import KServeConnection
from inferometer.manifests.errors import AgentError, ConfigurationError
from inferometer.protos.inference.v2 import model_config_pb2 as config_pb

TENSORS = (Tensor("data", "FP32", (-1, 1)),)
USUAL = bytes.fromhex("62082a02080132020801")  # the optimization of every model in Triton 2.51
WARM_UP = bytes.fromhex("82010361626300")[:6]  # field 16, of which this client knows nothing
REFUSED = (grpc.StatusCode.UNAVAILABLE, "explicit model load / unload is not allowed")


def config_of(backend="onnxruntime", extra=USUAL, max_batch_size=16):
    config = config_pb.ModelConfig(name="Mean", backend=backend, max_batch_size=max_batch_size)
    config.instance_group.add(name="Mean_0", count=1, kind=config_pb.ModelInstanceGroup.KIND_CPU)
    config.dynamic_batching.preferred_batch_size.append(16)
    config.dynamic_batching.priority_levels = 2
    config.MergeFromString(extra)
    return config


def served(**given):
    return Served(lambda batch: batch, TENSORS, TENSORS, **{"config": config_of(), "loads": [], **given})


@pytest.fixture
def control_of() -> Callable[[Served], ModelControl]:
    with ExitStack() as stack:

        def control(server):
            address = KServeAddress.parse(stack.enter_context(running(server)).address)
            connection = KServeConnection(address, RemoteOptions())
            stack.callback(connection.close)
            return ModelControl(connection, "Mean")

        yield control


def test_a_server_gets_its_whole_configuration_with_the_changes_and_at_the_end_its_own(control_of):
    server = served()
    control = control_of(server)
    control.serve(2, 8, 1.5, 3)
    control.serve(None, 1, 0.0, 1)
    control.close()
    control.close()

    before, changed, single, after = server.loads
    assert before == after
    assert before["dynamic_batching"] == {"preferred_batch_size": [16], "priority_levels": "2"}
    group = {"name": "Mean_0", "count": 3, "kind": "KIND_CPU"}
    assert changed == before | {
        "max_batch_size": 8,
        "instance_group": [group],
        "dynamic_batching": {"priority_levels": "2", "max_queue_delay_microseconds": 1500},
        "parameters": {"intra_op_thread_count": {"string_value": "2"}},
    }
    assert (single["max_batch_size"], "dynamic_batching" in single, "parameters" in single) == (
        1,
        False,
        False,
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loads": None}, "has no model_repository extension"),
        ({"config": None}, "has no model configuration"),
        ({"fails": {"RepositoryModelLoad": REFUSED}}, "explicit model load / unload is not allowed"),
        ({"config": config_of(extra=USUAL + WARM_UP)}, r"cannot be sent back over gRPC; use kserve\+http"),
        ({"config": config_of(extra=bytes.fromhex("62020801"))}, "cannot be sent back over gRPC"),
    ],
)
def test_a_server_that_cannot_be_controlled_is_one_line(control_of, given, message):
    with pytest.raises(AgentError, match=message) as error:
        control_of(served(**given))
    assert "\n" not in str(error.value)


def test_what_a_server_cannot_vary_is_refused_before_it_is_asked(control_of):
    server = served(config=config_of(backend="python", max_batch_size=0))
    control = control_of(server)
    with pytest.raises(ConfigurationError, match="its backend python takes no number of threads"):
        control.serve(2, 1, 0.0, 1)
    with pytest.raises(AgentError, match="without a batch axis"):
        control.serve(None, 4, 0.0, 1)
    assert len(server.loads) == 1
    control.serve(None, 1, 0.0, 2)
    assert "max_batch_size" not in server.loads[-1]


def test_a_configuration_that_is_not_restored_is_an_error(control_of):
    server = served()
    control = control_of(server)
    server.fails["RepositoryModelLoad"] = REFUSED
    with pytest.raises(AgentError, match="may still be served as it was tried last"):
        control.close()
