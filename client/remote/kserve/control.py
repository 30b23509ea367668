"""Changes how a server of the Open Inference Protocol serves a model, by loading it again."""

from __future__ import annotations

import copy
from typing import Any

from google.protobuf.json_format import MessageToDict

from inferometer.client.remote.address import AgentAddress, KServeAddress
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.kserve.server import KServeConnection, KServeServer
from inferometer.manifests.errors import AgentError, ConfigurationError
from inferometer.protos.inference.v2.model_config_pb2 import ModelConfig

_THREADS = "intra_op_thread_count"
_KEPT = ("weights", "seed", "version", "device", _THREADS)
"""The parameters that an agent reports, and that a load of it takes."""
_US_PER_MS = 1000
_USUAL = bytes.fromhex("62082a02080132020801")
"""The ``optimization`` that Triton gives every model, encoded; it does so again with a load without it."""


class ModelControl:
    """Serves a model in one way after the other, and as before when it is closed.

    Each way is a ``load`` of the repository extension with a model configuration: that of the server before,
    with another ``max_batch_size``, ``instance_group``, ``dynamic_batching`` and number of threads. An agent
    takes only these and the parameters of the model. A server that is ``owned`` is closed too. An empty
    version leaves the choice to the server.

    Raises:
        AgentError: The server cannot be reached, has no repository extension or no model configuration, or
            refuses to load the model with the configuration that it has.
    """

    def __init__(self, server: KServeServer, name: str, version: str = "", *, owned: bool = False) -> None:
        self._server, self._name, self._owned, self._closed = server, name, owned, False
        identity = server.identity()
        what = f'server {server.address.server}: model "{name}"'
        if "model_repository" not in identity.extensions:
            raise AgentError(
                f"{what} cannot be loaded otherwise: the server has no model_repository extension"
            )
        before = _whole(server, name, version)
        self._is_agent = identity.name == "inferometer"
        backend = before.get("backend") or before.get("platform", "")
        self._takes_threads = self._is_agent or backend.startswith("onnxruntime")
        self._backend = f"{what}: its backend {backend or 'without a name'}"
        self._before = _of_agent(before) if self._is_agent else before
        self._server.load_model(name, self._before)  # if this is refused, everything else will be

    @classmethod
    def of_agent(
        cls, address: AgentAddress, name: str, framework: str, remote: RemoteOptions
    ) -> ModelControl:
        """Returns the control of a model of an agent, in a framework, over a connection of its own."""
        server = KServeConnection(KServeAddress(address), remote)
        try:
            found = _whole(server, name).get("parameters", {}).get("framework", {})
            own = found.get("string_value") == framework
            return cls(server, name if own else f"{name}@{framework}", owned=True)
        except BaseException:
            server.close()
            raise

    def serve(
        self, threads: int | None, max_batch_size: int, max_queue_delay_ms: float, instances: int
    ) -> None:
        """Loads the model with another configuration; ``threads`` of None keeps their number.

        Raises:
            ConfigurationError: The server takes no number of threads.
            AgentError: The server refuses the configuration, or cannot be reached.
        """
        config = copy.deepcopy(self._before)
        if threads is not None:
            if not self._takes_threads:
                raise ConfigurationError(f"{self._backend} takes no number of threads; leave out threads")
            config.setdefault("parameters", {})[_THREADS] = {"string_value": str(threads)}
        if max_batch_size > 1 and not config.get("max_batch_size"):
            raise AgentError(f"{self._backend} serves it without a batch axis (max_batch_size is 0)")
        groups = config.get("instance_group") or [{}]
        config["instance_group"] = [{**groups[0], "count": instances}]
        dynamic = config.pop("dynamic_batching", {})
        if config.get("max_batch_size"):
            config["max_batch_size"] = max_batch_size
        if max_batch_size > 1:
            dynamic.pop("preferred_batch_size", None)
            delay = {"max_queue_delay_microseconds": round(max_queue_delay_ms * _US_PER_MS)}
            config["dynamic_batching"] = dynamic | delay
        self._server.load_model(self._name, config)

    def close(self) -> None:
        """Loads the model with the configuration that it had; calling it again does nothing.

        Raises:
            AgentError: The server does not load it.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._server.load_model(self._name, self._before)
        except AgentError as error:
            raise AgentError(f"{error}; the model may still be served as it was tried last") from error
        finally:
            if self._owned:
                self._server.close()


def _whole(server: KServeServer, name: str, version: str = "") -> dict[str, Any]:
    """Returns a model's whole configuration as JSON; raises AgentError if it cannot be had."""
    config = server.whole_config(name, version)
    if not isinstance(config, ModelConfig):
        if config is None:
            raise AgentError(f'server {server.address.server}: model "{name}" has no model configuration')
        return config
    known: Any = ModelConfig.FromString(config.SerializeToString().replace(_USUAL, b"", 1))
    size = known.ByteSize()
    known.DiscardUnknownFields()
    if known.ByteSize() < size:
        raise AgentError(
            f'server {server.address.server}: model "{name}" has a configuration with parts that cannot be '
            "sent back over gRPC; use kserve+http://"
        )
    return dict(MessageToDict(known, preserving_proto_field_name=True))


def _of_agent(config: dict[str, Any]) -> dict[str, Any]:
    """Returns those parts of the configuration of an agent's model that a load can change."""
    parameters = {key: value for key, value in config.get("parameters", {}).items() if key in _KEPT}
    groups = config["instance_group"]  # one a GPU, of which an earlier version has only one
    device = "gpu:" + str(groups[0]["gpus"][0]) if groups[0].get("gpus") else "cpu"
    found = {
        "max_batch_size": config["max_batch_size"],
        "instance_group": [{"count": sum(group["count"] for group in groups)}],
        "parameters": {"device": {"string_value": device}, **parameters},
    }
    if "dynamic_batching" in config:
        dynamic, taken = config["dynamic_batching"], ("max_queue_delay_microseconds", "preferred_batch_size")
        found["dynamic_batching"] = {key: dynamic[key] for key in taken if key in dynamic}
    return found
